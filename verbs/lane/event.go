package lane

// Names of events.
const (
	EventLaneDirty        = "lane_dirty"
	EventLaneRecovered    = "lane_recovered"
	EventHandlerException = "handler_exception"
	EventDroppedStale     = "get_payload_dropped_stale"
)

// Event is something worth a line in a log. Err is nil where there is none.
type Event struct {
	Name   string
	Label  Label
	Reason string
	Err    error
}

func (c *Config) emit(e Event) {
	if c.Events != nil {
		c.Events(e)
	}
}
