package folder

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoACL is a file system that cannot let a single user into a folder.
var ErrNoACL = errors.New("the file system has no access control lists")

// The attribute that has a file's access control list, and what is in it: a
// version, then tag, permissions and id of each entry, little endian
// (include/uapi/linux/posix_acl_xattr.h, acl(5)).
const (
	aclAttribute = "system.posix_acl_access"
	aclVersion   = 2

	aclOwner     = 0x01
	aclUser      = 0x02
	aclOwnGroup  = 0x04
	aclMask      = 0x10
	aclOthers    = 0x20
	aclNobody    = 0xffffffff // id of an entry that needs none
	aclAll       = 7
	aclReadEnter = 5
)

// LetIn lets one user look into a folder and open what is in it, besides its owner.
// That user cannot change or remove anything there, nor let others in. On a file
// system without access control lists the error is ErrNoACL and nobody else gets in.
func (d Folder) LetIn(name string, uid uint32) error {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	// The list's mask shows as the group's permissions, which MakeFolder gives none.
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o070 == aclReadEnter<<3 {
		return err
	}
	list := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, entry := range []struct {
		tag, permissions uint16
		id               uint32
	}{
		{aclOwner, aclAll, aclNobody},
		{aclUser, aclReadEnter, uid},
		{aclOwnGroup, 0, aclNobody},
		{aclMask, aclReadEnter, aclNobody},
		{aclOthers, 0, aclNobody},
	} {
		list = binary.LittleEndian.AppendUint16(list, entry.tag)
		list = binary.LittleEndian.AppendUint16(list, entry.permissions)
		list = binary.LittleEndian.AppendUint32(list, entry.id)
	}
	err = unix.Fsetxattr(fd, aclAttribute, list, 0)
	if errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("%s/%s: %w", d.Dir, name, ErrNoACL)
	}
	if err != nil {
		return fmt.Errorf("%s/%s: let user %d in: %w", d.Dir, name, uid, err)
	}
	return nil
}
