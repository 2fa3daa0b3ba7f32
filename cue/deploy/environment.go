package deploy

import (
	"fmt"
	"slices"
	"strings"
)

// EnvPrefix begins the name of every environment variable that RailStore reads.
const EnvPrefix = "RS_"

// envNames are those variables: of the command, of op-layer clients (RS_RDMA_), of readers
// (RS_MR_) and of tests and benchmarks.
var envNames = []string{
	"RS_STATE", "RS_DEPLOYMENT", "RS_CONFIG",

	"RS_RDMA_TRANSPORT_MODE", "RS_RDMA_NAMESPACE", "RS_RDMA_CONTROL_PLANE_HOST", "RS_RDMA_CONTROL_PLANE_PORT",
	"RS_RDMA_CONTROL_PLANE_TIMEOUT_MS", "RS_RDMA_WAIT_TIMEOUT_MS", "RS_RDMA_QPS_PER_CLIENT_PER_SHARD", "RS_RDMA_SLOTS_PER_QP",
	"RS_RDMA_ASYNC_DEPTH", "RS_RDMA_GET_RESPONSE_MODE", "RS_RDMA_PUT_PROTOCOL_VERSION", "RS_RDMA_PUT_V2_TRANSFER_MODE",
	"RS_RDMA_SERVER_GET_WORKERS", "RS_RDMA_SERVER_COROUTINES_PER_THREAD", "RS_RDMA_HOST", "RS_RDMA_RAILS",
	"RS_RDMA_CLIENT_INDEX", "RS_RDMA_NUM_CLIENT_PROCESSES",

	"RS_MR_COORDINATOR", "RS_MR_RAILS", "RS_MR_IO_TIMEOUT", "RS_MR_COOLDOWN", "RS_MR_QUARANTINE", "RS_MR_MAX_CONNECTIONS_PER_RAIL",
	"RS_MR_MAX_CONNECTIONS", "RS_MR_MAX_INFLIGHT_PER_RAIL", "RS_MR_MAX_INFLIGHT", "RS_MR_MAX_STAGING", "RS_MR_TASK_MAX_STRIPES",
	"RS_MR_MIN_RAILS", "RS_MR_ON_RAIL_FAILURE", "RS_MR_WEIGHTS", "RS_MR_DEADLINE", "RS_MR_HEDGE", "RS_MR_RECHECK", "RS_MR_VERIFY",

	"RS_REQUIRE", "RS_UPDATE", "RS_BENCH", "RS_BENCH_ROWS", "RS_MUTANTS", "RS_GUEST", "RS_NOBODY", "RS_READ_ONLY",
}

// envFamilies begin the names of variables that tests pass to their own processes.
var envFamilies = []string{"RS_TEST_", "RS_RXE_", "RS_SOFT_TEST_", "RS_CTRL_CRASH_"}

// EnvNames are the variables whose names begin with a prefix.
func EnvNames(prefix string) (out []string) {
	for _, n := range envNames {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	return out
}

// UnknownVariables says which variables of an environment ("NAME=value") begin with
// EnvPrefix and mean nothing to any part of RailStore, each in words: who sets one
// believes that it does something.
func UnknownVariables(environ []string) (out []string) {
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(envNames, name) ||
			slices.ContainsFunc(envFamilies, func(f string) bool { return strings.HasPrefix(name, f) }) {
			continue
		}
		what := name + ": there is no such variable"
		if near := Nearest(name, envNames); near != "" {
			what += fmt.Sprintf("; did you mean %s?", near)
		}
		if !slices.Contains(out, what) {
			out = append(out, what)
		}
	}
	slices.Sort(out)
	return out
}
