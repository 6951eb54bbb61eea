package setting

import "context"

func init() {
	register(kind{
		Kind: Kind{Pattern: "thp/khugepaged.defrag", Doc: "whether khugepaged moves pages about to make transparent hugepages: 1 or 0"},
		open: func(env *Environment, key string, _ []string) (Setting, error) {
			return khugepagedDefrag{kernelFile{env: env, key: key, of: "khugepaged defrag", path: thpFolder + "/khugepaged/defrag"}}, nil
		},
	})
}

// khugepagedDefrag is whether the kernel's thread that makes hugepages of small
// pages in use compacts memory for it. Documentation/admin-guide/mm/transhuge.rst.
type khugepagedDefrag struct{ kernelFile }

// Traits implements Setting.
func (khugepagedDefrag) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: UntilReboot} }

// Check implements Setting.
func (s khugepagedDefrag) Check(_ context.Context, value string) (string, error) {
	if _, err := s.read(); err != nil {
		return "", err
	}
	if value != "0" && value != "1" {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: "want 1 or 0"}
	}
	return value, nil
}

// Read implements Setting.
func (s khugepagedDefrag) Read(context.Context) (string, error) { return s.read() }

// Write implements Setting.
func (s khugepagedDefrag) Write(ctx context.Context, value string) error {
	if err := s.write(value); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
