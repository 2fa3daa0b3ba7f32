package verbs

// Endpoint is one end of a connection as the other end must know it; it is
// exchanged in metadata.
type Endpoint struct {
	GID     GID     `json:"gid"`
	GIDType GIDType `json:"gid_type"`
	LID     uint16  `json:"lid,omitempty"`
	QPN     uint32  `json:"qpn"`
	PSN     uint32  `json:"psn"` // first PSN that this end sends
	MTU     int     `json:"mtu"` // active MTU of its port, bytes
	UDPPort uint16  `json:"udp_port,omitempty"`
}

// PathOpts are the local choices for a connection. Zero values are replaced as
// said beside each field.
type PathOpts struct {
	Port            uint8 // 1
	SGIDIndex       int
	PKeyIndex       uint16
	MTU             int    // cap on the path MTU; 0: the smaller of both ends
	Access          Access // remote rights of the peer on this QP
	SL              uint8
	TrafficClass    uint8
	HopLimit        uint8 // 64
	FlowLabel       uint32
	Timeout         uint8 // 14 (67 ms)
	RetryCount      uint8 // taken as it is
	RNRRetry        uint8 // taken as it is
	MinRNRTimer     uint8 // 12 (0.64 ms)
	MaxRDAtomic     int   // 0: 16 or what the device allows
	MaxDestRDAtomic int   // 0: 16 or what the device allows
}

// PathMTU is the MTU that both ends and the cap allow.
func (o PathOpts) PathMTU(local, remote Endpoint) int {
	m := min(local.MTU, remote.MTU)
	if o.MTU > 0 {
		m = min(m, o.MTU)
	}
	return m
}

// Connect takes the QP from RESET through INIT and RTR to RTS towards remote.
// local.PSN is the first PSN that this end sends. Receives that must be there
// before the peer sends are posted by onInit, called in INIT (nil: none).
func (q *QP) Connect(local, remote Endpoint, o PathOpts, onInit func() error) error {
	if o.Port == 0 {
		o.Port = 1
	}
	if o.HopLimit == 0 {
		o.HopLimit = 64
	}
	if o.Timeout == 0 {
		o.Timeout = 14
	}
	if o.MinRNRTimer == 0 {
		o.MinRNRTimer = 12
	}
	lim := q.pd.ctx.attr.MaxRDAtomic
	if o.MaxRDAtomic == 0 {
		o.MaxRDAtomic = min(16, lim)
	}
	if o.MaxDestRDAtomic == 0 {
		o.MaxDestRDAtomic = min(16, lim)
	}
	err := q.Modify(QPAttr{State: QPInitState, Port: o.Port, PKeyIndex: o.PKeyIndex, Access: o.Access},
		MaskState|MaskPort|MaskPKeyIndex|MaskAccess)
	if err != nil {
		return err
	}
	if onInit != nil {
		if err := onInit(); err != nil {
			return err
		}
	}
	err = q.Modify(QPAttr{State: QPRTR, PathMTU: o.PathMTU(local, remote), DestQPN: remote.QPN, RQPSN: remote.PSN,
		MaxDestRDAtomic: o.MaxDestRDAtomic, MinRNRTimer: o.MinRNRTimer,
		AV: AV{DGID: remote.GID, SGIDIndex: o.SGIDIndex, DLID: remote.LID, SL: o.SL, TrafficClass: o.TrafficClass,
			HopLimit: o.HopLimit, FlowLabel: o.FlowLabel, UDPPort: remote.UDPPort}},
		MaskState|MaskAV|MaskPathMTU|MaskDestQPN|MaskRQPSN|MaskMaxDestRDAtomic|MaskMinRNRTimer)
	if err != nil {
		return err
	}
	return q.Modify(QPAttr{State: QPRTS, Timeout: o.Timeout, RetryCount: o.RetryCount, RNRRetry: o.RNRRetry,
		SQPSN: local.PSN, MaxRDAtomic: o.MaxRDAtomic},
		MaskState|MaskTimeout|MaskRetryCount|MaskRNRRetry|MaskSQPSN|MaskMaxRDAtomic)
}
