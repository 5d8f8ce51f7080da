/* Inside the library: the communicator as the layers below see it. */
#ifndef RF_API_COMM_H
#define RF_API_COMM_H

#include "group/runner.h"

/* Borrowed; lives as long as the communicator. */
struct rf__runner *rf__comm_runner(struct rf_comm *comm);

#endif
