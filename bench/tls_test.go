package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// authority signs certificates for 127.0.0.1 that no system trusts.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir(), pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "headgate test authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	var der []byte
	der, a.key = a.sign(t, template)
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

// sign makes a key and a certificate for it, by the authority, or by itself where there is none yet.
func (a *authority) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// issue writes a pair for 127.0.0.1 with that serial number.
func (a *authority) issue(t *testing.T, name string, serial int64) (cert, key string) {
	t.Helper()
	der, private := a.sign(t, &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return a.write(t, name+".pem", "CERTIFICATE", der), a.write(t, name+".key", "PRIVATE KEY", text)
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// before puts TLS in front of a server and returns its port.
func (a *authority) before(t *testing.T, addr string) int {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.issue(t, "engine", 5))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// TestTLSEverywhere: the public port, Redis, Consul and the engine speak TLS by an authority of the operator's own, and the
// port takes a renewed certificate while it serves.
func TestTLSEverywhere(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	ca := filepath.Join(a.dir, "ca.pem")
	cert, key := a.issue(t, "redis", 2)
	redisPort, consulPort := lab.FreePort(t), lab.FreePort(t)
	redis := lab.Redis(t, "--tls-port", strconv.Itoa(redisPort), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no")
	cert, key = a.issue(t, "consul", 3)
	consul := lab.Consul(t, "-hcl", `ports { https = `+strconv.Itoa(consulPort)+` } cert_file = "`+cert+`" key_file = "`+key+`"`)
	s := &stack{redis: redis, consul: consul}
	plain, err := engine.Start(engine.Options{Models: []string{"secure"}, Speed: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	registerAs(t, consul, "b1", "127.0.0.1:"+strconv.Itoa(a.before(t, plain.Addr)),
		map[string]string{"model": "secure", "slots": "8", "scheme": "https"})
	cert, key = a.issue(t, "public", 7)
	s.Fleet = fleet.Start(t, fleet.Options{Redis: "rediss://127.0.0.1:" + strconv.Itoa(redisPort), Consul: "https://127.0.0.1:" + strconv.Itoa(consulPort),
		Catalogue: "models: {secure: {}}\n", Env: []string{"HG_CA_FILE=" + ca, "HG_TLS_CERT=" + cert, "HG_TLS_KEY=" + key, "CONSUL_CACERT=" + ca}})
	replica := s.Replicas[0]
	lab.Eventually(t, 30*time.Second, func() bool { return replica.Metric(`headgate_backends{pool="secure",state="healthy"}`) == 1 }, "the engine is known")

	url := strings.Replace(replica.URL, "http:", "https:", 1)
	secret := s.Key("--tenant", "acme")
	// serial asks on a connection of its own and returns the number of the certificate it was shown.
	serial := func() int64 {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: a.pool}}}
		answer, err := client.Do(fleet.Request(t, url+"/v1/chat/completions", secret, fleet.Chat("secure", "hi", `"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 200 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
			t.Fatalf("%d %v %s", answer.StatusCode, err, body)
		}
		return answer.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 7 {
		t.Errorf("certificate %d", n)
	}
	if answer := fleet.Ask(t, replica.URL, secret, fleet.Chat("secure", "hi")); answer.Status != 400 || !strings.Contains(answer.Body, "This port speaks HTTPS") {
		t.Errorf("cleartext: %d %s", answer.Status, answer.Body)
	}
	a.issue(t, "public", 8)
	lab.Eventually(t, 20*time.Second, func() bool { return serial() == 8 }, "the renewed certificate is shown")
	if err := os.WriteFile(cert, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 20*time.Second, func() bool { return strings.Contains(replica.Output(), "certificate not taken") }, "a broken file is complained of")
	if n := serial(); n != 8 {
		t.Errorf("a broken file put certificate %d in use", n)
	}
	s.WaitLines(1)
}
