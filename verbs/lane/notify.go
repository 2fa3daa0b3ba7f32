package lane

import "fmt"

// Notify is how an end learns that a word was written.
type Notify uint8

const (
	// Adaptive writes words with WRITE_WITH_IMM. Whoever waits polls for a short
	// while and then sleeps on the CQ's event, so that idling costs no CPU.
	Adaptive Notify = iota
	// Imm is Adaptive without the polling: least CPU, a wake-up in every call.
	Imm
	// Scan writes words with plain WRITE and both ends poll the words. Nothing
	// wakes an end that sleeps, so an idle server keeps scanning, at growing
	// intervals (PollerConfig.ScanSleep), and so does a client with calls under
	// way.
	Scan
)

var notifyNames = [...]string{"adaptive", "imm", "scan"}

func (n Notify) String() string {
	if int(n) < len(notifyNames) {
		return notifyNames[n]
	}
	return fmt.Sprintf("notify %d", uint8(n))
}

// ParseNotify reads what String writes.
func ParseNotify(s string) (Notify, error) {
	for i, n := range notifyNames {
		if n == s {
			return Notify(i), nil
		}
	}
	return 0, fmt.Errorf("notify %q: want one of %q", s, notifyNames)
}

// MarshalText writes the form of String.
func (n Notify) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads the form of String.
func (n *Notify) UnmarshalText(b []byte) error {
	v, err := ParseNotify(string(b))
	if err == nil {
		*n = v
	}
	return err
}
