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
)

var eventNames = [...]string{"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "PORT_ACTIVE", "PORT_ERR", "GID_CHANGE", "PKEY_CHANGE", "LID_CHANGE", "DEVICE_FATAL"}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// AsyncEvent is one asynchronous event of a device. QPN is set for QP events,
// Port for port events.
type AsyncEvent struct {
	Type EventType
	Port uint8
	QPN  uint32
	Err  error // detail where the provider has one
}
