/* Starting and ending processes. See drill_child.h. */
#include "drill_child.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS_NO_EXEC = 127 };

static int open_log(const char *path) {
    return path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
}

/* Between fork and exec: only calls that are safe there. */
static _Noreturn void child_main(const struct drill_start *start, int out, int errors, int report,
                                 pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (getppid() == parent && null_fd >= 0 && dup2(null_fd, 0) >= 0 && dup2(out, 1) >= 0 &&
        dup2(errors, 2) >= 0) {
        sigprocmask(SIG_SETMASK, &start->signals, NULL);
        execvp(start->path, start->argv);
    }
    int reason = errno;
    ssize_t written = write(report, &reason, sizeof reason);
    (void)written;
    _exit(STATUS_NO_EXEC);
}

static void close_one(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

int drill_child_start(struct drill_child *child, const struct drill_start *start,
                      struct rf_error *err) {
    int out[2] = {-1, -1}, report[2] = {-1, -1}, errors = -1, rc = 0, reason = 0;
    pid_t parent = getpid();

    *child = (struct drill_child){0};
    errors = open_log(start->err_path);
    if (errors < 0) {
        rc = report_fail(err, RF_EIO, errno, "cannot write '%s'", start->err_path);
        goto out;
    }
    if (start->out_pipe ? pipe2(out, O_CLOEXEC) : (out[1] = open_log(start->out_path)) < 0) {
        rc = report_fail(err, RF_EIO, errno, "cannot take the output of '%s'", start->argv[0]);
        goto out;
    }
    if (pipe2(report, O_CLOEXEC)) {
        rc = report_fail(err, RF_EIO, errno, "cannot make a pipe");
        goto out;
    }
    pid_t pid = fork();
    if (pid < 0) {
        rc = report_fail(err, RF_EIO, errno, "cannot start '%s'", start->argv[0]);
        goto out;
    }
    if (!pid) {
        child_main(start, out[1], errors, report[1], parent);
    }
    setpgid(pid, pid); /* here too: whoever comes first */
    close(report[1]);
    report[1] = -1;
    ssize_t count;
    do {
        count = read(report[0], &reason, sizeof reason);
    } while (count < 0 && errno == EINTR);
    child->pid = pid;
    if (count == (ssize_t)sizeof reason) {
        drill_child_kill(child);
        rc = report_fail(err, RF_EIO, reason, "cannot execute '%s'", start->path);
        goto out;
    }
    if (start->out_pipe) {
        fcntl(out[0], F_SETFL, O_NONBLOCK);
        *start->out_pipe = out[0];
        out[0] = -1;
    }
out:
    close_one(report[0]);
    close_one(report[1]);
    close_one(out[0]);
    close_one(out[1]);
    close_one(errors);
    return rc;
}

static void note_end(struct drill_child *child, int status) {
    child->ended = true;
    child->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool drill_child_runs(struct drill_child *child) {
    int status;

    if (!child->pid || child->ended) {
        return false;
    }
    if (waitpid(child->pid, &status, WNOHANG) != child->pid) {
        return true;
    }
    note_end(child, status);
    return false;
}

void drill_child_signal(const struct drill_child *child, int signal) {
    if (child->pid && !child->ended) {
        kill(child->pid, signal);
    }
}

void drill_child_kill(struct drill_child *child) {
    int status;

    if (!child->pid || child->ended) {
        return;
    }
    kill(-child->pid, SIGKILL);
    kill(child->pid, SIGKILL); /* it may not have made its group yet */
    while (waitpid(child->pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return;
        }
    }
    note_end(child, status);
}

/* The parent, from /proc: the name in parentheses may hold anything. */
static pid_t parent_of(pid_t pid) {
    char path[32], text[512];
    int parent = -1;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    close_one(fd);
    if (count > 0) {
        text[count] = '\0';
        const char *end = strrchr(text, ')');
        if (end && strlen(end) > 4) {
            parent = (int)strtol(end + 4, NULL, 10); /* ") S 123" */
        }
    }
    return parent;
}

bool drill_signal_worker(pid_t pid, const struct drill_child *launcher, int signal) {
    if (pid <= 1 || launcher->ended || parent_of(pid) != launcher->pid) {
        return false;
    }
    pid_t target = getpgid(pid) == pid ? -pid : pid;
    return kill(target, signal) == 0;
}
