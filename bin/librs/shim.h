/* What shim.c and the Go side of the library say to each other. */
#ifndef RAILSTORE_SHIM_H
#define RAILSTORE_SHIM_H

#include "railstore.h"

/* Gives err, which may be NULL, its content. block holds the eight texts one after the
 * other, each with its NUL, and is err's from now on. */
void rsi_adopt(rs_error *err, int status, int shard, int lane, char *block);

/* The process's environment as it is now; what Go has is as it was when the process began. */
char **rsi_environment(void);

/* The i-th of items, leases and errors, whose callers may have larger structs than we do. */
const rs_read_item *rsi_item(const rs_read_item *items, size_t i, rs_read_item *own);
void rsi_lease_out(rs_leased *leases, size_t i, const rs_leased *from);
rs_error *rsi_error_at(rs_error *errors, size_t i);

#endif
