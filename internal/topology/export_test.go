package topology

// For the tests, which are outside the package because package machines
// imports it.
var (
	ParseMask         = parseMask
	ComparePCI        = comparePCI
	ReadSnapshotOwned = readSnapshot
	DecodeSnapshot    = func(content []byte) (*Machine, error) {
		s, err := decodeSnapshot(content)
		if err != nil {
			return nil, err
		}
		return s.Machine, nil
	}
)

const MaxWarnings = maxWarnings
