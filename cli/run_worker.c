/* Starting, watching and ending worker processes, and the guard that outlives the launcher by a
 * moment. */
#include "run_worker.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <ringfold/limits.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS_SAVED = 75, STATUS_NO_EXEC = 127 };

/* The guard's whole life. A number in the pipe is a group to kill at the end, its negative one to
 * forget. */
static _Noreturn void guard_main(int fd) {
    static pid_t groups[RF_MAX_LOCAL_RANKS];
    pid_t message;
    ssize_t count;

    while ((count = read(fd, &message, sizeof message)) != 0) {
        pid_t wanted = message > 0 ? 0 : -message;
        for (int i = 0; count == (ssize_t)sizeof message && i < RF_MAX_LOCAL_RANKS; i++) {
            if (groups[i] == wanted) {
                groups[i] = message > 0 ? message : 0;
                break;
            }
        }
        if (count < 0 && errno != EINTR) {
            break;
        }
    }
    for (int i = 0; i < RF_MAX_LOCAL_RANKS; i++) {
        if (groups[i]) {
            kill(-groups[i], SIGKILL);
        }
    }
    _exit(0);
}

int run_guard_start(struct run_guard *guard, struct rf_error *err) {
    int ends[2];

    *guard = (struct run_guard){.fd = -1};
    if (pipe2(ends, O_CLOEXEC)) {
        return report_fail(err, RF_EIO, errno, "cannot make a pipe");
    }
    guard->pid = fork();
    if (guard->pid < 0) {
        report_fail(err, RF_EIO, errno, "cannot start a process");
        close(ends[0]);
        close(ends[1]);
        return RF_EIO;
    }
    if (!guard->pid) {
        /* Out of the terminal's reach, and without a hold on anything of the launcher's. */
        setsid();
        prctl(PR_SET_NAME, "ringfold-guard");
        if (ends[0] != 0) {
            dup2(ends[0], 0);
        }
        close_range(1, ~0U, 0);
        guard_main(0);
    }
    close(ends[0]);
    guard->fd = ends[1];
    return 0;
}

void run_guard_stop(struct run_guard *guard) {
    if (guard->fd >= 0) {
        close(guard->fd);
        while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    guard->fd = -1;
}

static void tell_guard(int fd, pid_t message) {
    ssize_t written = write(fd, &message, sizeof message);
    (void)written; /* a guard that was killed cannot help; the parent-death signal still does */
}

/* Between fork and exec: only calls that are safe there. */
static _Noreturn void child_main(const struct run_launch *launch, char **environment,
                                 const int inherited[2], const cpu_set_t *cores, const int pipes[3],
                                 pid_t parent) {
    struct sigaction standard = {.sa_handler = SIG_DFL};

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(STATUS_NO_EXEC);
    }
    tell_guard(launch->guard->fd, getpid());
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(pipes[0], 1) < 0 || dup2(pipes[1], 2) < 0 ||
        fcntl(inherited[0], F_SETFD, 0) || (inherited[1] >= 0 && fcntl(inherited[1], F_SETFD, 0))) {
        goto failed;
    }
    if (cores && sched_setaffinity(0, sizeof *cores, cores)) {
        goto failed;
    }
    setrlimit(RLIMIT_NOFILE, &launch->open_files);
    sigaction(SIGPIPE, &standard, NULL);
    sigprocmask(SIG_SETMASK, &launch->signals, NULL);
    execvpe(launch->path, launch->argv, environment);
failed:;
    int reason = errno;
    ssize_t written = write(pipes[2], &reason, sizeof reason);
    (void)written;
    _exit(STATUS_NO_EXEC);
}

static void close_both(int ends[2]) {
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) {
            close(ends[i]);
            ends[i] = -1;
        }
    }
}

int run_worker_start(struct run_worker *worker, const struct run_launch *launch, char **environment,
                     int key_fd, int event_fd, const cpu_set_t *cores, int *exec_errno,
                     struct rf_error *err) {
    int out[2] = {-1, -1}, errors[2] = {-1, -1}, exec[2] = {-1, -1};
    pid_t parent = getpid();
    int rc = 0;

    *exec_errno = 0;
    if (pipe2(out, O_CLOEXEC) || pipe2(errors, O_CLOEXEC) || pipe2(exec, O_CLOEXEC) ||
        fcntl(out[0], F_SETFL, O_NONBLOCK) || fcntl(errors[0], F_SETFL, O_NONBLOCK)) {
        rc = report_fail(err, RF_EIO, errno, "cannot make the pipes of worker %d", worker->id);
        goto out;
    }
    pid_t pid = fork();
    if (pid < 0) {
        rc = report_fail(err, RF_EIO, errno, "cannot start worker %d", worker->id);
        goto out;
    }
    if (!pid) {
        child_main(launch, environment, (int[]){key_fd, event_fd}, cores,
                   (int[]){out[1], errors[1], exec[1]}, parent);
    }
    setpgid(pid, pid); /* here too: whoever comes first */
    close(exec[1]);
    exec[1] = -1;
    ssize_t count;
    do {
        count = read(exec[0], exec_errno, sizeof *exec_errno);
    } while (count < 0 && errno == EINTR);
    if (count == (ssize_t)sizeof *exec_errno) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        tell_guard(launch->guard->fd, -pid);
        rc = report_fail(err, RF_EWORKER, *exec_errno, "cannot execute '%s'", launch->argv[0]);
        goto out;
    }
    worker->pid = pid;
    worker->state = WORKER_RUNNING;
    worker->out.fd = out[0];
    worker->err.fd = errors[0];
    out[0] = errors[0] = -1;
out:
    close_both(exec);
    close_both(errors);
    close_both(out);
    return rc;
}

bool run_worker_ended(struct run_worker *worker) {
    siginfo_t info = {0};

    if (worker->state != WORKER_RUNNING ||
        waitid(P_PID, (id_t)worker->pid, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid) {
        return false;
    }
    worker->state = WORKER_DRAINING;
    worker->signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    worker->status = info.si_code == CLD_EXITED ? info.si_status : 0;
    return true;
}

bool run_worker_stands_still(const struct run_worker *worker) {
    siginfo_t info = {0};

    return worker->state == WORKER_RUNNING &&
           waitid(P_PID, (id_t)worker->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid && info.si_code == CLD_STOPPED;
}

void run_worker_signal(struct run_worker *worker, int signal) {
    if (worker->state == WORKER_NONE || worker->state == WORKER_DONE) {
        return;
    }
    worker->told |= worker->state == WORKER_RUNNING;
    kill(-worker->pid, signal);
}

void run_worker_reap(struct run_worker *worker, const struct run_guard *guard) {
    tell_guard(guard->fd, -worker->pid);
    while (waitpid(worker->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    worker->state = WORKER_DONE;
}

bool run_worker_ended_well(const struct run_worker *worker) {
    return !worker->signal && (worker->status == 0 || worker->status == STATUS_SAVED);
}

int run_worker_exit_code(const struct run_worker *worker) {
    return worker->signal ? 128 + worker->signal : worker->status;
}

void run_signal_name(char out[16], int signal) {
    const char *name = sigabbrev_np(signal);

    if (name) {
        snprintf(out, 16, "SIG%s", name);
    } else {
        snprintf(out, 16, "signal %d", signal);
    }
}

void run_worker_end_text(const struct run_worker *worker, char *out, size_t room) {
    char name[16];

    if (worker->signal) {
        run_signal_name(name, worker->signal);
        snprintf(out, room, "ended by %s", name);
    } else {
        snprintf(out, room, "ended with exit status %d", worker->status);
    }
}
