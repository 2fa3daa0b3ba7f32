package load_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/load"
)

// bigRecipe has n hosts with r rails each and a shard on every other one.
func bigRecipe(n, r int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "import %q\nschemas.#Deployment\nname: \"big\"\nlanes: {registeredBytes: 1Ti, cqDepth: 0x40_0000}\nhosts: [\n", load.SchemaImport)
	for i := range n {
		fmt.Fprintf(&b, "\t{name: \"h%d\", rails: [", i)
		for k := range r {
			fmt.Fprintf(&b, "\"soft:10.%d.%d.%d\", ", k, i/250, i%250+1)
		}
		b.WriteString("]},\n")
	}
	b.WriteString("]\nshards: [\n")
	for i := range (n + 1) / 2 {
		fmt.Fprintf(&b, "\t{id: %d, host: \"h%d\"},\n", i, i)
	}
	b.WriteString("]\n")
	return []byte(b.String())
}

func BenchmarkLoad(b *testing.B) {
	for _, size := range []struct{ hosts, rails int }{{3, 2}, {16, 4}, {64, 8}} {
		b.Run(fmt.Sprintf("hosts=%d/rails=%d", size.hosts, size.rails), func(b *testing.B) {
			src := bigRecipe(size.hosts, size.rails)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := load.Load("big.cue", load.Options{Source: src}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
