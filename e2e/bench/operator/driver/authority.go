package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Certificates of one bench run.
type authority struct {
	folder string
	pem    []byte
	cert   *x509.Certificate
	key    crypto.Signer
	mutex  sync.Mutex
	serial int64
	made   map[string][2][]byte
}

func newAuthority(folder string) (*authority, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	a := &authority{folder: folder, key: key, serial: 1, made: map[string][2][]byte{}}
	template := a.template("bench-ca")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	server := a.template("kube-apiserver")
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	certificate, serverKey, err := a.issue(server)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{"ca.crt": a.pem, "server.crt": certificate, "server.key": serverKey} {
		if err := os.WriteFile(a.file(name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *authority) file(name string) string { return filepath.Join(a.folder, name) }

func (a *authority) template(name string) *x509.Certificate {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func (a *authority) issue(template *x509.Certificate) (certificate, key []byte, err error) {
	pair, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, pair.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(pair)})
	return certificate, key, nil
}

// The certificate of a user, made once. The audit log tells users apart by it.
func (a *authority) client(user string) (certificate, key []byte) {
	a.mutex.Lock()
	found, there := a.made[user]
	a.mutex.Unlock()
	if there {
		return found[0], found[1]
	}
	certificate, key, err := a.issue(a.template(user))
	if err != nil {
		// Only a broken random source does that; the API server will then refuse the empty pair.
		return nil, nil
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.made[user] = [2][]byte{certificate, key}
	return certificate, key
}
