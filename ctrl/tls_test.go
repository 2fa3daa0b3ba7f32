package ctrl

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// authority signs certificates in a test's folder.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.file = filepath.Join(a.dir, "ca.crt")
	return a
}

func (a *authority) sign(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, k
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &k.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, f := range []struct {
		ext, typ string
		der      []byte
	}{{".crt", "CERTIFICATE", der}, {".key", "EC PRIVATE KEY", kder}} {
		b := pem.EncodeToMemory(&pem.Block{Type: f.typ, Bytes: f.der})
		if err := os.WriteFile(filepath.Join(a.dir, name+f.ext), b, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return parsed, k
}

// files makes a certificate for 127.0.0.1 that both ends may use.
func (a *authority) files(name string, ca bool) *TLSFiles {
	a.sign(name, &x509.Certificate{IPAddresses: []net.IP{net.ParseIP("127.0.0.1")}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	f := &TLSFiles{Cert: filepath.Join(a.dir, name+".crt"), Key: filepath.Join(a.dir, name+".key")}
	if ca {
		f.CA = a.file
	}
	return f
}

func TestTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	tryFor := func(d time.Duration, addr string, f *TLSFiles) error {
		ctx, cancel := context.WithTimeout(testContext(t), d)
		defer cancel()
		c, err := Dial(ctx, addr, testIdentity, ClientOptions{TLS: f})
		if err == nil {
			err = errors.Join(c.Join(ctx, info("client/tls")), c.Leave(ctx, ""), c.Close())
		}
		return err
	}
	try := func(addr string, f *TLSFiles) error { return tryFor(time.Minute, addr, f) }
	// refused gives the error of an attempt that lasts long enough to hear why the
	// other end refuses, which a busy machine may need more than half a second for.
	refused := func(addr string, f *TLSFiles, says func(error) bool) (err error) {
		for d := 500 * time.Millisecond; d < 20*time.Second; d *= 3 {
			if err = tryFor(d, addr, f); err == nil || says(err) {
				break
			}
		}
		return err
	}
	server := startServer(t, ServerConfig{TLS: ours.files("server", false)})
	mutual := startServer(t, ServerConfig{TLS: ours.files("mutual", true)})
	if err := try(server.Addr(), &TLSFiles{CA: ours.file}); err != nil {
		t.Errorf("server authentication: %v", err)
	}
	if err := try(mutual.Addr(), ours.files("client", true)); err != nil {
		t.Errorf("mutual authentication: %v", err)
	}
	for _, c := range []struct {
		name, addr string
		files      *TLSFiles
		want       string
	}{
		{"a foreign server", server.Addr(), &TLSFiles{CA: theirs.file}, "x509: "},
		{"no certificate", mutual.Addr(), &TLSFiles{CA: ours.file}, ""},
		{"a foreign client", mutual.Addr(), &TLSFiles{CA: ours.file, Cert: theirs.files("x", false).Cert, Key: filepath.Join(theirs.dir, "x.key")}, ""},
		{"no TLS", server.Addr(), nil, ""},
	} {
		var pe *pipeline.Error
		err := refused(c.addr, c.files, func(err error) bool {
			return errors.As(err, &pe) && strings.Contains(err.Error(), c.want) && strings.Contains(pe.Hint, "tls")
		})
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		t.Logf("%s: %v\n  hint: %s", c.name, err, pe.Hint)
		if !strings.Contains(pe.Hint, "tls") {
			t.Errorf("%s: the hint is %q", c.name, pe.Hint)
		}
	}
	plain := startServer(t, ServerConfig{})
	says := func(err error) bool { return err != nil && strings.Contains(err.Error(), "tls: ") }
	if err := refused(plain.Addr(), &TLSFiles{CA: ours.file}, says); !says(err) {
		t.Errorf("TLS to a server without: %v", err)
	}
	// With TLS every address may be bound.
	anywhere := startServer(t, ServerConfig{Address: "0.0.0.0:0", TLS: ours.files("any", true)})
	_, port, _ := net.SplitHostPort(anywhere.Addr())
	if err := try(net.JoinHostPort("127.0.0.1", port), ours.files("client2", true)); err != nil {
		t.Error(err)
	}
}

func TestTLSFiles(t *testing.T) {
	a := newAuthority(t)
	good := a.files("s", false)
	junk := filepath.Join(a.dir, "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*TLSFiles{
		"no certificate": {CA: a.file},
		"missing":        {Cert: "/nonexistent", Key: good.Key},
		"junk":           {Cert: junk, Key: good.Key},
		"junk ca":        {Cert: good.Cert, Key: good.Key, CA: junk},
		"missing ca":     {Cert: good.Cert, Key: good.Key, CA: "/nonexistent"},
		"wrong key":      {Cert: good.Cert, Key: filepath.Join(a.dir, "ca.key")},
	} {
		if s, err := NewServer(ServerConfig{Address: "127.0.0.1:0", Shards: []int{0}, TLS: f}); err == nil {
			_ = s.Close()
			t.Errorf("%s: is taken", name)
		}
	}
	if _, err := Dial(t.Context(), "127.0.0.1:1", testIdentity, ClientOptions{TLS: &TLSFiles{CA: junk}}); err == nil || !strings.Contains(err.Error(), junk) {
		t.Error(err)
	}
}
