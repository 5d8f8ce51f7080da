/* Everything of the public interface. */
#ifndef RINGFOLD_RINGFOLD_H
#define RINGFOLD_RINGFOLD_H

#include <ringfold/ckpt.h>
#include <ringfold/comm.h>
#include <ringfold/data.h>
#include <ringfold/ddp.h>
#include <ringfold/error.h>
#include <ringfold/event.h>
#include <ringfold/job.h>
#include <ringfold/limits.h>
#include <ringfold/plan.h>
#include <ringfold/sample.h>
#include <ringfold/store.h>
#include <ringfold/train.h>
#include <ringfold/tuning.h>
#include <ringfold/types.h>
#include <ringfold/version.h>
#include <ringfold/wire.h>

#endif
