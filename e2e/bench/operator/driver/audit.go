package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

func (m *machine) auditLog() string { return filepath.Join(m.folder, "audit.log") }

func (m *machine) auditMark() int64 {
	info, err := os.Stat(m.auditLog())
	if err != nil {
		return 0
	}
	return info.Size()
}

// What a user called since a mark: "patch inferenceclusters/status" and how often. Leases are left out: time makes
// those calls, not objects.
func (m *machine) calls(mark int64, user string) (map[string]int, error) {
	file, err := os.Open(m.auditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(mark, 0); err != nil {
		return nil, err
	}
	calls := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<20)
	for lines.Scan() {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Subresource string }
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.User.Username != user || event.ObjectRef.Resource == "leases" {
			continue
		}
		what := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			what += "/" + event.ObjectRef.Subresource
		}
		calls[what]++
	}
	return calls, lines.Err()
}

// Whether a call changes something.
func writes(what string) bool {
	verb, _, _ := strings.Cut(what, " ")
	return verb != "get" && verb != "list" && verb != "watch"
}
