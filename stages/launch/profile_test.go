package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// TestProfiles: records of several writers are all there, each whole, also over files
// that were put aside.
func TestProfiles(t *testing.T) {
	s, err := NewState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Folder("p")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Create(); err != nil {
		t.Fatal(err)
	}
	const writers, records = 4, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			l, err := f.OpenProfile()
			if err != nil {
				t.Error(err)
				return
			}
			l.log.most = 20000
			for i := range records {
				l.Write(map[string]any{"component": "c", "who": fmt.Sprintf("%d/%d", w, i)})
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			l.Write("after the end")
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(f.ProfilePath() + ".1"); err != nil {
		t.Errorf("nothing was put aside: %v", err)
	}
	seen := map[any]bool{}
	if err := f.Profiles(context.Background(), Position{}, false, func(r map[string]any, _ []byte) error {
		seen[r["who"]] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != writers*records {
		t.Errorf("%d records, want %d", len(seen), writers*records)
	}
	stop := errors.New("enough")
	if err := f.Profiles(context.Background(), Position{}, false, func(map[string]any, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}
