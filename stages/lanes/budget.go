package lanes

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/railstore/railstore/cue/deploy"
)

// policy says when a lane may be rebuilt.
type policy struct {
	enabled        bool
	maxAttempts    int           // in a lane's life, where window is 0
	window         time.Duration // in which windowAttempts count
	windowAttempts int
	cooldown       time.Duration // between the beginnings of two attempts
	cooldownMax    time.Duration // up to which it doubles with each failure
	wait           time.Duration // for each half of the handshake
	sweep          time.Duration // how often lanes are looked after without traffic; 0: never
	jitter         func() float64
}

func policyOf(r *deploy.Rebuild) policy {
	return policy{enabled: r.Enabled, maxAttempts: r.MaxAttempts, window: r.Window.D(), windowAttempts: r.WindowAttempts,
		cooldown: r.Cooldown.D(), cooldownMax: max(r.Cooldown.D(), r.CooldownMax.D()), wait: r.Wait.D(), sweep: r.Sweep.D(),
		jitter: rand.Float64}
}

// jitterShare is how much longer than said a pause may be, so that many clients
// of a shard that comes back do not come at once.
const jitterShare = 0.2

// pause is the time from the beginning of an attempt to that of the next, after
// some failures in a row.
func (p *policy) pause(failures int) time.Duration {
	d := p.cooldown
	for range min(failures-1, 30) {
		if d *= 2; d >= p.cooldownMax {
			d = p.cooldownMax
			break
		}
	}
	if failures == 0 {
		return d // after a success the spec's pause, exactly
	}
	return d + time.Duration(jitterShare*p.jitter()*float64(d))
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// ledger is the account of the attempts at one lane. Times are those of one
// monotonic clock. It is a value without locks, clocks or goroutines.
type ledger struct {
	attempts int             // in the lane's life; success does not forgive
	failures int             // since the last success
	recent   []time.Duration // beginnings within the window, oldest first
	next     time.Duration   // no attempt begins before
}

// ask says when the next attempt may begin: now or earlier is now. exhausted means
// that there will be none.
func (l *ledger) ask(p *policy, now time.Duration) (at time.Duration, exhausted bool) {
	if p.window <= 0 {
		return l.next, l.attempts >= p.maxAttempts
	}
	l.forget(p, now)
	at = l.next
	if n := len(l.recent); n >= p.windowAttempts {
		at = max(at, l.recent[n-p.windowAttempts]+p.window)
	}
	return at, false
}

func (l *ledger) forget(p *policy, now time.Duration) {
	n := 0
	for _, t := range l.recent {
		if now-t < p.window {
			l.recent[n] = t
			n++
		}
	}
	l.recent = l.recent[:n]
}

// begin takes note of an attempt.
func (l *ledger) begin(p *policy, now time.Duration) {
	l.attempts++
	if p.window > 0 {
		l.forget(p, now)
		l.recent = append(l.recent, now)
	}
	l.next = now + p.pause(0)
}

// end takes note of its outcome; begun is when it began.
func (l *ledger) end(p *policy, begun time.Duration, ok bool) {
	if ok {
		l.failures = 0
		return
	}
	l.failures++
	l.next = begun + p.pause(l.failures)
}
