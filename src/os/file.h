/* Files as blobs.
 *
 * `rf__file_blobs` reads only, and its names are paths. What `rf__file_blobs_create` makes also
 * writes, and its names are relative to a folder, the root: "step-7/manifest.json". Reads are
 * `pread`, so a bad disk is an error and not a signal.
 *
 * What a user can rely on:
 *  - A blob is there whole or not at all. It is written to a temporary file beside its place, which
 *    is synced, renamed into place, and then the folder is synced, and each folder above it, so
 *    that after `finish` neither the process's end nor a power cut takes it away. When `finish`
 *    reports that the last of these failed, the new blob stands, but a power cut may bring the old
 *    one back.
 *  - A sync that failed is never tried again on the same file: the kernel may have thrown away what
 *    it could not write. The temporary file is removed; write the blob anew. An interrupted sync
 *    counts as failed, so let a thread that writes block its signals.
 *  - only_new: of two writers exactly one wins, also on different hosts. It takes
 *    renameat2(RENAME_NOREPLACE), or else link(); a file system with neither (some that show an
 *    object store as files) gives RF_EUNSUPPORTED.
 *  - What a killed writer leaves: files that begin with ".rf-tmp-" (host, process and a counter
 *    follow), and folders that are empty. `list` does not tell them, `collect` removes them when
 *    they are old enough and no living process of this host made them. For other hosts' leftovers
 *    there is only the age, which is that of the last write: give it an hour and more. As the name
 *    does not tell what was to be written, `collect` looks into every folder in which names of its
 *    prefix stand or would stand, the root for one.
 *  - Symbolic links below the root are not followed by `list` and `collect`, nor told. `finish`
 *    replaces one, `remove` removes it, `open` reads through it.
 *  - `remove` is durable when it returns; folders that it leaves empty go too, but not the root.
 *
 * NFS: a rename or link whose answer was lost is recognised by the file that stands there. The
 * server must not be exported with "async", or what it promised is gone after its own power cut.
 * Ages are by the server's clock. A name may stand for seconds in another host's cache after it was
 * removed or replaced. */
#ifndef RF_OS_FILE_H
#define RF_OS_FILE_H

#include "io/blob.h"
#include "os/file_sys.h"

/* What names begin with that are not to be given to blobs, and how long such a name gets. */
#define RF__FILE_TEMPORARY ".rf-tmp-"
enum { RF__FILE_TEMPORARY_MAX = 96, RF__FILE_NAME_MAX = 1024 /* with its end */ };

extern struct rf__blobs rf__file_blobs;

/* `root` (copied) need not exist: it is made by the first write; until then nothing is found in it.
 * A relative one is taken from the present folder, once. `sys` NULL: the machine's own; else
 * borrowed until the blobs are destroyed. RF_EINVAL, RF_ENOMEM, RF_EIO. */
int rf__file_blobs_create(const char *root, struct rf__file_sys *sys, struct rf__blobs **out,
                          struct rf_error *err);

/* The name of a temporary file, and who made it; false for any other name. */
void rf__file_temporary_name(char out[RF__FILE_TEMPORARY_MAX], const struct rf__file_maker *maker,
                             uint64_t counter);
bool rf__file_temporary_parse(const char *name, struct rf__file_maker *maker);

#endif
