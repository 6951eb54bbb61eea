package setting

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// PowerLimitName is the last part of the key.
const PowerLimitName = "power.limit"

func init() {
	register(kind{
		Kind: Kind{Pattern: "gpu/*/" + PowerLimitName, Doc: "power limit in watts, up to three decimals: 500, 512.5"},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return powerLimit{g}, err
		},
	})
}

// powerLimit is the power that a GPU may draw.
//
// nvmlDeviceGetPowerManagementLimit reads it in milliwatts,
// nvmlDeviceSetPowerManagementLimit sets it, so the value before a job comes
// back exactly, be it the card's default or a site's cap. A value is in watts,
// with the milliwatts as decimals where there are any. The driver forgets it
// when it unloads: at a reboot and, without persistence mode, when the last
// program leaves the GPU.
type powerLimit struct{ gpu }

// Traits implements Setting.
func (powerLimit) Traits() Traits { return Traits{Needs: WholeGPU, Lifetime: UntilReboot} }

// Check implements Setting. It takes watts ("500", "500W", "512.5"), "max" and
// "default", which is the card's own.
func (s powerLimit) Check(_ context.Context, value string) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	low, high, standard, err := device.PowerLimits()
	if err != nil {
		return "", err
	}
	switch value {
	case "max":
		return Watts(high), nil
	case "default":
		return Watts(standard), nil
	}
	text := strings.TrimSuffix(value, "W")
	fail := &ValueError{
		Of: of(device), Value: "power " + shown(text) + " W",
		Accepts: fmt.Sprintf("supported %s–%s W, max or default", Watts(low), Watts(high)),
	}
	limit, err := parseWatts(text)
	if err != nil {
		return "", fail
	}
	if limit < low || limit > high {
		fail.Accepts = fmt.Sprintf("supported %s–%s W", Watts(low), Watts(high))
		fail.Nearest = Watts(min(max(limit, low), high))
		return "", fail
	}
	return Watts(limit), nil
}

// Read implements Setting.
func (s powerLimit) Read(context.Context) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	limit, err := device.PowerLimit()
	if err != nil {
		return "", err
	}
	return Watts(limit), nil
}

// Write implements Setting.
func (s powerLimit) Write(ctx context.Context, value string) error {
	device, err := s.device()
	if err != nil {
		return err
	}
	limit, err := parseWatts(value)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	if err := device.SetPowerLimit(limit); err != nil {
		return err
	}
	return readBack(ctx, s, of(device)+": power limit in W", value)
}

// Watts writes milliwatts as watts: 700000 is "700", 512500 is "512.5".
func Watts(milliwatts uint32) string {
	whole, rest := milliwatts/1000, milliwatts%1000
	if rest == 0 {
		return strconv.FormatUint(uint64(whole), 10)
	}
	return strings.TrimRight(fmt.Sprintf("%d.%03d", whole, rest), "0")
}

// parseWatts is the reverse of Watts.
func parseWatts(text string) (milliwatts uint32, err error) {
	first, second, decimals := strings.Cut(text, ".")
	if len(second) > 3 || decimals && second == "" {
		return 0, strconv.ErrSyntax
	}
	whole, err := parseNumber(first)
	if err != nil {
		return 0, err
	}
	var rest uint32
	if decimals {
		if rest, err = parseNumber((second + "00")[:3]); err != nil {
			return 0, err
		}
	}
	total := uint64(whole)*1000 + uint64(rest)
	if total > math.MaxUint32 {
		return 0, strconv.ErrRange
	}
	return uint32(total), nil
}
