package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/gateway"
)

// authorities are the system's certificate authorities and those of the file; nil, which means the system's, without one.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("HG_CA_FILE: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a machine without any
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("HG_CA_FILE: %s holds no certificate in PEM form", file)
	}
	return pool, nil
}

// certificateEvery is how often the files are looked at: whoever renews a certificate need not tell headgate.
const certificateEvery = 2 * time.Second

// certificate is that of the public port, as its two files have it now. A pair that cannot be read or does not belong
// together changes nothing. nil is a port in cleartext.
type certificate struct {
	cert, key string // paths
	log       zerolog.Logger
	current   atomic.Pointer[tls.Certificate]
	seen      []byte // contents that were judged last
}

func openCertificate(cert, key string, log zerolog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// cover speaks TLS 1.2 or later on every connection.
func (c *certificate) cover(l net.Listener) net.Listener {
	if c == nil {
		return l
	}
	return gateway.TLS(l, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	})
}

// watch takes new files until ctx ends; SIGHUP looks at once.
func (c *certificate) watch(ctx context.Context) error {
	if c == nil {
		return nil
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(certificateEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
		case <-tick.C:
		}
		switch err := c.read(); {
		case errors.Is(err, errSame):
		case err != nil:
			c.log.Error().Err(err).Msg("certificate not taken: the one before stays in use")
		default:
			c.log.Info().Time("until", c.current.Load().Leaf.NotAfter).Msg("certificate taken")
		}
	}
}

// errSame says that the files are as they were when they were judged.
var errSame = errors.New("the same files")

// read judges the pair if it is new.
func (c *certificate) read() error {
	cert, err := os.ReadFile(c.cert)
	if err != nil {
		return c.fault("HG_TLS_CERT", err)
	}
	key, err := os.ReadFile(c.key)
	if err != nil {
		return c.fault("HG_TLS_KEY", err)
	}
	both := append(append(cert, 0), key...)
	if bytes.Equal(both, c.seen) {
		return errSame
	}
	c.seen = both
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("HG_TLS_CERT, HG_TLS_KEY: %w", err)
	}
	c.current.Store(&pair)
	return nil
}

// fault is said once for a file that stays away.
func (c *certificate) fault(name string, err error) error {
	text := []byte(err.Error())
	if bytes.Equal(text, c.seen) {
		return errSame
	}
	c.seen = text
	return fmt.Errorf("%s: %w", name, err)
}
