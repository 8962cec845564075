package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
)

func (m *machine) auditLog() string { return filepath.Join(m.folder, "audit.log") }

func (m *machine) auditMark() int64 {
	info, err := os.Stat(m.auditLog())
	if err != nil {
		return 0
	}
	return info.Size()
}

// Calls of a user since a mark: those that write, and the others. Leases are not counted: time makes them, not objects.
func (m *machine) calls(mark int64, user string) (writes, reads int, err error) {
	file, err := os.Open(m.auditLog())
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	if _, err := file.Seek(mark, 0); err != nil {
		return 0, 0, err
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<20)
	for lines.Scan() {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource string }
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.User.Username != user || event.ObjectRef.Resource == "leases" {
			continue
		}
		switch event.Verb {
		case "create", "update", "patch", "delete", "deletecollection":
			writes++
		default:
			reads++
		}
	}
	return writes, reads, lines.Err()
}
