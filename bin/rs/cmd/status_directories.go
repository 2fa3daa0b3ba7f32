package cmd

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// directoriesAsk bounds the question for directories: it is asked each time, and a
// process that is stopped must not make every status slow.
const directoriesAsk = 300 * time.Millisecond

// lookAtDirectories asks the shards' processes for their directories. One that does
// not answer has none in the result; the status of shards says that it is not well.
func (r *statusResult) lookAtDirectories(ctx context.Context, f launch.Folder) error {
	r.Directories = []object.DirectoryStatus{}
	actx, cancel := context.WithTimeout(ctx, directoriesAsk)
	defer cancel()
	peers, err := f.Admins(actx)
	if err == nil {
		peers = slices.DeleteFunc(peers, func(p launch.AdminPeer) bool { return p.Shard < 0 || p.Err != nil })
	}
	lists, err2 := askAll[[]object.DirectoryStatus](actx, peers, http.MethodGet, "/v1/directories", nil)
	if ctx.Err() != nil {
		return errors.Join(err, err2)
	}
	for _, l := range lists {
		if l != nil {
			r.Directories = append(r.Directories, *l...)
		}
	}
	return nil
}

// printDirectories shows those that need a look: all others are as the recipe says.
func (a *app) printDirectories(r *statusResult) {
	t := newTable("SHARD", "DIR", "PATH", "STATE", "FREE", "SIZE", "REASON")
	t.rightAlign(5, 6)
	n := 0
	for i := range r.Directories {
		d := &r.Directories[i]
		why := d.Reason
		if why == "" && d.Buffered != "" {
			why = "through the page cache: " + d.Buffered
		}
		if why == "" {
			continue
		}
		free, total := "-", "-"
		if d.Total > 0 {
			free, total = size(d.Free), size(d.Total)
		}
		n++
		t.row(d.Shard, d.Directory, d.Path, a.paintState(d.State), free, total, launch.OneLine(why))
	}
	if n > 0 {
		a.printf("\n%s", t)
	}
}
