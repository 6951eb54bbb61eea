package conf

// Switch is yes or no.
type Switch bool

// UnmarshalTOML implements toml.Unmarshaler.
func (s *Switch) UnmarshalTOML(value any) error {
	on, isBool := value.(bool)
	if !isBool {
		return wrong(value, "true or false")
	}
	*s = Switch(on)
	return nil
}
