package ctrl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLSFiles are PEM files. A server needs Cert and Key; with CA it demands a
// certificate that the CA signed from its clients. A client trusts CA (empty: the
// system's) and shows Cert and Key when it has them.
type TLSFiles struct {
	Cert, Key, CA string
}

func (f *TLSFiles) pair() ([]tls.Certificate, error) {
	if f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	c, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("tls certificate %s, key %s: %w", f.Cert, f.Key, err)
	}
	return []tls.Certificate{c}, nil
}

func (f *TLSFiles) pool() (*x509.CertPool, error) {
	if f.CA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("tls ca: %w", err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls ca %s: no certificate in it", f.CA)
	}
	return p, nil
}

func (f *TLSFiles) server() (credentials.TransportCredentials, error) {
	if f == nil {
		return insecure.NewCredentials(), nil
	}
	certs, err := f.pair()
	if err != nil {
		return nil, err
	}
	if certs == nil {
		return nil, errors.New("tls: a control plane needs cert and key")
	}
	ca, err := f.pool()
	if err != nil {
		return nil, err
	}
	c := &tls.Config{Certificates: certs, MinVersion: tls.VersionTLS13}
	if ca != nil {
		c.ClientCAs, c.ClientAuth = ca, tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(c), nil
}

func (f *TLSFiles) client() (credentials.TransportCredentials, error) {
	if f == nil {
		return insecure.NewCredentials(), nil
	}
	certs, err := f.pair()
	if err != nil {
		return nil, err
	}
	ca, err := f.pool()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{Certificates: certs, RootCAs: ca, MinVersion: tls.VersionTLS13}), nil
}

// loopback reports whether a listener on host can be reached from this machine
// only. A name is so when every address that it resolves to is.
func loopback(host string) bool {
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	if host == "" {
		return false
	}
	ips, err := net.LookupIP(host)
	if err != nil || len(ips) == 0 {
		return false
	}
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false
		}
	}
	return true
}
