package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// readyTimeout is longer than /readyz ever takes, and shorter than orchestrators wait for a probe.
const readyTimeout = 3 * time.Second

func (s surroundings) ready() *cobra.Command {
	return &cobra.Command{
		DisableFlagsInUseLine: true,
		Use:                   "ready",
		Short:                 "Say whether the replica on this machine is ready (for health checks)",
		Long: `Asks /readyz on the port of HG_ADMIN_LISTEN, on this machine. Exit status 0: ready. 1: not ready, with the reasons, or
nothing answers. Meant as the health check of containers, whose image has no other program.`,
		Example: "  headgate ready\n  HG_ADMIN_LISTEN=127.0.0.1:9091 headgate ready",
		Args:    arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.config()
			if err != nil {
				return err
			}
			if err := askReady(c.Context(), cfg.AdminListen); err != nil {
				return err
			}
			_, err = fmt.Fprintln(s.stdout, "ready")
			return err
		},
	}
}

// askReady is nil when the replica whose admin port listens there says that it is ready.
func askReady(ctx context.Context, listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("HG_ADMIN_LISTEN: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	addr := net.JoinHostPort(host, port)
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return fmt.Errorf("no replica answers at %s (HG_ADMIN_LISTEN)", addr)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	var body struct {
		NotReady map[string]string `json:"not_ready"`
	}
	if json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&body) != nil || len(body.NotReady) == 0 {
		return fmt.Errorf("what answers at %s is no replica: status %d", addr, answer.StatusCode)
	}
	reasons := make([]string, 0, len(body.NotReady))
	for _, name := range slices.Sorted(maps.Keys(body.NotReady)) {
		reasons = append(reasons, name+": "+body.NotReady[name])
	}
	return fmt.Errorf("not ready: %s", strings.Join(reasons, "; "))
}
