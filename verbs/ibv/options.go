package ibv

// Options of a driver. The zero value is for programs.
type Options struct {
	// Library is the file to load instead of what RAILSTORE_IBVERBS_LIB or the
	// system say.
	Library string
	// DevDir is where the device files are: /dev/infiniband.
	DevDir string
	// SysDir is where the kernel lists its devices: /sys/class/infiniband.
	SysDir string
}

// EnvLibrary names the environment variable that chooses the library's file.
const EnvLibrary = "RAILSTORE_IBVERBS_LIB"

func (o Options) devDir() string {
	if o.DevDir != "" {
		return o.DevDir
	}
	return "/dev/infiniband"
}

func (o Options) sysDir() string {
	if o.SysDir != "" {
		return o.SysDir
	}
	return "/sys/class/infiniband"
}
