package cmd

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v3"
)

// versionInfo is what rs knows about itself.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cgo      bool   `json:"cgo"`
}

func buildInfo() versionInfo {
	v := versionInfo{Version: "unreleased", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		v.Version = bi.Main.Version
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "CGO_ENABLED":
			v.Cgo = s.Value == "1"
		}
	}
	return v
}

func (a *app) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "what this rs is and how it was built",
		Description: `Examples:
   rs version
   rs version --format json`,
		Action: func(_ context.Context, c *cli.Command) error {
			if _, err := arguments(c); err != nil {
				return err
			}
			v := buildInfo()
			if a.json {
				return a.printJSON(v)
			}
			rev := ""
			if v.Revision != "" {
				rev = " " + v.Revision[:min(12, len(v.Revision))]
				if v.Modified {
					rev += " (modified)"
				}
			}
			cgo := "without cgo"
			if v.Cgo {
				cgo = "with cgo"
			}
			a.printf("rs %s%s, %s %s, %s\n", v.Version, rev, v.Go, v.Platform, cgo)
			return nil
		},
	}
}
