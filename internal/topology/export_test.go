package topology

// For the tests, which are outside the package because package machines
// imports it.
var (
	ComparePCI        = comparePCI
	ReadSnapshotOwned = readSnapshot
	DecodeSnapshot    = ParseSnapshot
)

const MaxWarnings = maxWarnings
