package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is set when a release is built: -ldflags "-X main.release=1.2.3".
var release string

// buildFacts is what this binary was made from.
type buildFacts struct{ release, revision, committed string }

func thisBuild() buildFacts {
	b := buildFacts{release: cmp.Or(release, "dev")}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	dirty := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.time":
			b.committed = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	if b.revision != "" {
		b.revision += dirty
	}
	return b
}

func (b buildFacts) String() string {
	text := "headgate " + b.release
	if b.revision != "" {
		text += fmt.Sprintf(" (%s, %s)", b.revision, b.committed)
	}
	return text + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}

func (s surroundings) version() *cobra.Command {
	return &cobra.Command{
		DisableFlagsInUseLine: true,
		Use:                   "version",
		Short:                 "Say which headgate this is",
		Args:                  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.stdout, thisBuild())
			return err
		},
	}
}
