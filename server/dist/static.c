/*
 * Linked into the program by `make static`: it finds users and hosts by what is inside of it, the files of /etc and DNS.
 *
 * Other sources that /etc/nsswitch.conf may name (resolve, mdns, myhostname, sss) are modules of the system's C library. A
 * static program can load them, and crashes if they belong to another version of the C library.
 */
#include <nss.h>

__attribute__((constructor)) static void use_built_in_sources(void) {
    __nss_configure_lookup("hosts", "files dns");
    __nss_configure_lookup("passwd", "files");
    __nss_configure_lookup("group", "files");
    __nss_configure_lookup("services", "files");
}
