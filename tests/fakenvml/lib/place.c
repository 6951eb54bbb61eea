/* Where the description lies. */
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char beside_library[PATH_MAX]; /* set once, before any call */

/*
 * Found when the library is loaded: a relative LD_LIBRARY_PATH means something
 * else after a chdir. A link to the library counts as the library, so that
 * one in the system's folder can point to a test's.
 */
__attribute__((constructor)) static void find_library(void)
{
	Dl_info info;
	char library[PATH_MAX];
	if (!dladdr(beside_library, &info) || !realpath(info.dli_fname, library))
		return;
	if (!place_beside(beside_library, sizeof beside_library, library, "fakenvml.conf"))
		beside_library[0] = '\0';
}

/* False if there is no place to look. */
bool place_find(char *conf, size_t size)
{
	const char *said = getenv("FAKENVML_CONF");
	if (!said || *said == '\0')
		said = beside_library;
	size_t length = strlen(said);
	if (length == 0 || length >= size)
		return false;
	memcpy(conf, said, length + 1);
	return true;
}

/* name if it is absolute, else name in the folder of file. False if too long. */
bool place_beside(char *out, size_t size, const char *file, const char *name)
{
	const char *slash = strrchr(file, '/');
	int folder = name[0] == '/' || !slash ? 0 : (int)(slash - file) + 1;
	int n = snprintf(out, size, "%.*s%s", folder, file, name);
	return n >= 0 && (size_t)n < size;
}
