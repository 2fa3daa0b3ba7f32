package verbs

import "fmt"

// EventType of an asynchronous event (IBTA 11.6.3).
type EventType uint8

const (
	EventCQError EventType = iota
	EventQPFatal
	EventQPRequestError // the peer asked for something invalid
	EventQPAccessError  // the peer touched memory it may not
	EventCommEstablished
	EventPortActive
	EventPortError
	EventGIDChange
	EventPKeyChange
	EventLIDChange
	EventDeviceFatal
	EventSMChange
	EventClientReregister // the subnet manager wants what it was told to be told again
)

// The words of enum ibv_event_type without IBV_EVENT_.
var eventNames = [...]string{"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "PORT_ACTIVE", "PORT_ERR", "GID_CHANGE", "PKEY_CHANGE", "LID_CHANGE", "DEVICE_FATAL",
	"SM_CHANGE", "CLIENT_REREGISTER"}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// OfQP reports whether the event is about one QP, which AsyncEvent.QPN names.
func (t EventType) OfQP() bool {
	switch t {
	case EventQPFatal, EventQPRequestError, EventQPAccessError, EventCommEstablished:
		return true
	}
	return false
}

// OfPort reports whether the event is about one port, which AsyncEvent.Port names.
func (t EventType) OfPort() bool {
	switch t {
	case EventPortActive, EventPortError, EventGIDChange, EventPKeyChange, EventLIDChange, EventSMChange, EventClientReregister:
		return true
	}
	return false
}

// AsyncEvent is one asynchronous event of a device. QPN is set for QP events, CQ
// for CQ events, Port for port events. The QP or CQ may be closed by the time the
// event is taken, and the number given to another QP; CQ is nil if it was closed
// before the event was handed on.
type AsyncEvent struct {
	Type EventType
	Port uint8
	QPN  uint32
	CQ   DriverCQ
	Err  error // detail where the provider has one
}

// IsOf reports whether the event is about this CQ.
func (e AsyncEvent) IsOf(q *CQ) bool {
	if e.CQ == nil {
		return false
	}
	d := q.drv
	for {
		if d == e.CQ {
			return true
		}
		w, ok := d.(interface{ Unwrap() DriverCQ })
		if !ok {
			return false
		}
		d = w.Unwrap()
	}
}
