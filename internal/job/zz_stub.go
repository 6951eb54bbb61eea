package job

func (s *scene) noSwap() bool { return false }

func (s *scene) thpDisable() bool { return false }
