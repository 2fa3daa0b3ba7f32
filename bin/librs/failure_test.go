package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/ps"
)

func TestPanicIsAnError(t *testing.T) {
	err := safely("read", func() error { panic("what a\x00pity") })
	if statusOf(err) != exit.Failed || kindOf(err) != "internal" || !strings.Contains(err.Error(), "what a") || !strings.Contains(err.Error(), "failure_test.go:") {
		t.Errorf("%v", err)
	}
	gone, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mprotect(gone, syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Munmap(gone); err != nil {
			t.Error(err)
		}
	}()
	err = safely("read", func() error {
		copy(gone, "0123456789")
		return nil
	})
	if kindOf(err) != "internal" {
		t.Errorf("a write to memory that is not there: %v", err)
	}
	if err := safely("read", func() error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestFailureTexts(t *testing.T) {
	err := pipeline.Errorf(pipeline.LayerDevice, "read", pipeline.Where{Shard: 1, Lane: 2, Rail: "a"}, "%w: zero\x00byte", object.ErrNotFound).WithHint("do so")
	f := failureOf(err)
	if place(f.Shard) != 1 || place(f.Lane) != 2 {
		t.Errorf("%+v", f)
	}
	texts := bytes.Split(f.texts(), []byte{0})
	if len(texts) != 9 || len(texts[8]) != 0 {
		t.Fatalf("%q", texts)
	}
	for i, want := range []string{"not_found", "device", "read", "a", "", "object not found: zero?byte", "do so"} {
		if string(texts[i]) != want {
			t.Errorf("text %d is %q, want %q", i, texts[i], want)
		}
	}
	var doc struct{ Error map[string]any }
	if err := json.Unmarshal(texts[7], &doc); err != nil || doc.Error["kind"] != "not_found" || doc.Error["shard"] != 1.0 || doc.Error["hint"] != "do so" {
		t.Errorf("%s: %v", texts[7], err)
	}
}

// Every kind is in the documentation, and so is the layer that stands for the rest.
func TestKinds(t *testing.T) {
	doc, err := os.ReadFile("../../docs/c-abi.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(word string) {
		if !bytes.Contains(doc, []byte("`"+word+"`")) {
			t.Errorf("docs/c-abi.md does not have the kind `%s`", word)
		}
	}
	for _, k := range kinds {
		has(k.word)
		if got := kindOf(fmt.Errorf("somewhere: %w", k.err)); got != k.word {
			t.Errorf("%v is of the kind %s, want %s", k.err, got, k.word)
		}
	}
	for _, l := range []pipeline.Layer{pipeline.LayerUsage, pipeline.LayerDevice, pipeline.LayerWait, pipeline.LayerNode, pipeline.LayerService, pipeline.LayerConfig,
		pipeline.LayerControl, pipeline.LayerResource, pipeline.LayerConnect, pipeline.LayerStorage, pipeline.LayerIntegrity, pipeline.LayerPlacement} {
		has(string(l))
		if got := kindOf(pipeline.Errorf(l, "x", pipeline.Nowhere, "x")); got != string(l) {
			t.Errorf("layer %s is of the kind %s", l, got)
		}
	}
	for _, word := range []string{"recipe", "forked"} {
		has(word)
	}
	if got := kindOf(errors.New("x")); got != "internal" {
		t.Errorf("an error of no layer is of the kind %s", got)
	}
}

func TestTableFailure(t *testing.T) {
	b := &ps.BatchError{Op: "get", Table: "t", Keys: 3, Shards: []*ps.ShardError{{Shard: 1, Lane: 0, Rail: "r", Keys: []ps.Range{{From: 0, To: 2}}, Err: ps.ErrMemory}}}
	err := tableFailure(b)
	f := failureOf(err)
	if f.Kind != "table_memory" || place(f.Shard) != 1 || f.Rail != "r" || f.Op != "get" || statusOf(err) != exit.Failed || !strings.Contains(f.Message, "2 of 3 keys failed") {
		t.Errorf("%+v", f)
	}
	if err := tableFailure(ps.ErrClosed); err != ps.ErrClosed {
		t.Error(err)
	}
}
