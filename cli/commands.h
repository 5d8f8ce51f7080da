/* The commands of `ringfold`. Each reads its own arguments, reports its own errors (report.h) and
 * returns the exit status.
 *
 * argv[0] is "ringfold NAME", so that usage lines come out right; argp's own usage errors exit
 * with 64. */
#ifndef RF_CLI_COMMANDS_H
#define RF_CLI_COMMANDS_H

int cmd_run(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_drill(int argc, char **argv);
int cmd_rollback(int argc, char **argv);
int cmd_ckpt(int argc, char **argv);
int cmd_sample(int argc, char **argv);
int cmd_data(int argc, char **argv);

#endif
