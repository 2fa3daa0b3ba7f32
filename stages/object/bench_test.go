package object

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs/soft"
)

// softSite is a site whose rails are the embedded provider's, on loopback
// addresses that other tests do not use.
func softSite(t testing.TB, staging int64) *site {
	return newSiteOn(t, soft.New(soft.Options{}), func(d *deploy.Deployment) {
		for h := range d.Hosts {
			for r := range d.Hosts[h].Rails {
				d.Hosts[h].Rails[r].Device = fmt.Sprintf("soft:127.83.%d.%d", r+1, h+1)
			}
		}
		for i := range d.Shards {
			d.Shards[i].Slab = 64 << 20
		}
		d.Objects.StripeBytes = 4 << 20
		d.Reader.MaxStaging = staging
	})
}

func BenchmarkRead(b *testing.B) {
	const size = 64 << 20
	x := softSite(b, 2*size)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, size)
	if _, err := s.Put(context.Background(), testKey, NewSource(bytes.NewReader(data), size, "data"), PutOptions{}); err != nil {
		b.Fatal(err)
	}
	for _, rails := range [][]string{{"a"}, {"a", "b"}} {
		b.Run(fmt.Sprintf("rails=%d/size=64MiB", len(rails)), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				buf, _, err := s.Read(context.Background(), testKey, ReadOptions{Rails: rails})
				if err != nil {
					b.Fatal(err)
				}
				buf.Release()
			}
		})
	}
}

func BenchmarkPut(b *testing.B) {
	const size = 64 << 20
	x := softSite(b, size)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, size)
	b.SetBytes(size)
	for b.Loop() {
		if _, err := s.Put(context.Background(), testKey, NewSource(bytes.NewReader(data), size, "data"), PutOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerify is what a client does to every byte that arrives: the stripe's
// hash and its part of the whole's.
func BenchmarkVerify(b *testing.B) {
	const stripe = 4 << 20
	buf := randomBytes(1, 16*stripe)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		x := newInOrder(buf, stripe, 16)
		for i := range 16 {
			if Sum(buf[i*stripe:(i+1)*stripe]) == "" {
				b.Fatal("no hash")
			}
			x.add(uint32(i))
		}
	}
}

func BenchmarkStore(b *testing.B) {
	for _, n := range []int{4 << 10, 1 << 20, 4 << 20} {
		s, err := OpenStore(StoreConfig{Deployment: "bench", Dirs: []string{b.TempDir()}})
		if err != nil {
			b.Fatal(err)
		}
		data := randomBytes(1, n)
		file, m := testStripe("x", 1, 0, data)
		b.Run(fmt.Sprintf("write/size=%dKiB", n>>10), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				if err := s.Write(0, file, &m, data); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("read/size=%dKiB", n>>10), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				if _, err := s.Read(0, file, m.Identity, data); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpenRead is what a command does that reads one object of 1 MiB: connect, read,
// leave. The memory that the recipe allows must cost nothing until it is used.
func BenchmarkOpenRead(b *testing.B) {
	const size = 1 << 20
	x := softSite(b, 1<<30)
	defer x.close()
	s := x.open(nil)
	data := randomBytes(1, size)
	if _, err := s.Put(context.Background(), testKey, NewSource(bytes.NewReader(data), size, "data"), PutOptions{}); err != nil {
		b.Fatal(err)
	}
	x.shut(s)
	for b.Loop() {
		s := x.open(nil)
		buf, _, err := s.Read(context.Background(), testKey, ReadOptions{})
		if err != nil {
			b.Fatal(err)
		}
		buf.Release()
		x.shut(s)
	}
}
