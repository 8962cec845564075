package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A program that the bench started.
type process struct {
	name, user string
	command    *exec.Cmd
	done       chan error
}

// Starts a program; its output goes to a file of its name.
func (m *machine) launch(name, path string, environment []string, arguments ...string) (*process, error) {
	log, err := os.Create(filepath.Join(m.folder, name+".log"))
	if err != nil {
		return nil, err
	}
	command := exec.Command(path, arguments...)
	command.Env = append(os.Environ(), environment...)
	command.Stdout, command.Stderr = log, log
	// If the bench is killed, so are they.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	p := &process{name: name, command: command, done: make(chan error, 1)}
	go func() { p.done <- command.Wait(); _ = log.Close() }()
	m.processes = append(m.processes, p)
	return p, nil
}

func (p *process) end() {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(2 * time.Second):
		_ = p.command.Process.Kill()
		<-p.done
	}
}

// Largest resident size so far, in bytes.
func (p *process) peakRSS() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return -1
	}
	for line := range bytes.Lines(text) {
		if rest, found := bytes.CutPrefix(line, []byte("VmHWM:")); found {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64)
			if err != nil {
				return -1
			}
			return kib << 10
		}
	}
	return -1
}

// User and system time so far.
func (p *process) cpu() time.Duration {
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		return -1
	}
	// The name, in parentheses, may hold spaces.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		return -1
	}
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

// Ports that were free a moment ago.
func freePorts(count int) ([]int, error) {
	ports := make([]int, 0, count)
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
