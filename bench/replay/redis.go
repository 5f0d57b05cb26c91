package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/headgate/headgate/bench/ports"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/rs/zerolog"
)

// startRedis starts a redis-server of this program's own, which ends with it, and returns its URL.
func startRedis() (url string, stop func(), err error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if path, err = exec.LookPath(".tools/bin/redis-server"); err != nil {
			return "", nil, errors.New("redis-server is neither on PATH nor in .tools/bin: run `make tools`")
		}
	}
	port, err := ports.Free()
	if err != nil {
		return "", nil, err
	}
	c := exec.Command(path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("redis://127.0.0.1:%d/0", port), func() { _ = c.Process.Kill(); _ = c.Wait() }, nil
}

// openStore connects to a Redis; the scripts are loaded.
func openStore(url string) (store *pipeline.Store, closed func(), err error) {
	store, err = pipeline.NewStore(pipeline.StoreConfig{Name: "replay", URL: url, Timeout: 30 * time.Second, Log: zerolog.Nop()})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = store.Run(ctx)
	}()
	closed = func() { cancel(); <-done }
	reach, end := context.WithTimeout(ctx, 30*time.Second)
	defer end()
	err = store.WaitConnected(reach)
	if err == nil {
		err = store.Load(reach, lua.All()...)
	}
	if err != nil {
		closed()
		return nil, nil, err
	}
	return store, closed, nil
}
