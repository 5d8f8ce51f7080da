/* Softmax and cross-entropy. The largest logit is taken off first, so that no exponential
 * overflows; sums are in double. A few numbers a sample: plain C, in the order of the samples. */
#include "nn/layer.h"

#include <math.h>

/* log(sum of exp(logit)), less the largest logit, which goes to *largest. */
static double log_sum(const float *logits, int classes, int *largest) {
    double sum = 0;
    *largest = 0;
    for (int k = 1; k < classes; k++) {
        if (logits[k] > logits[*largest]) {
            *largest = k;
        }
    }
    for (int k = 0; k < classes; k++) {
        sum += exp((double)logits[k] - (double)logits[*largest]);
    }
    return log(sum);
}

struct rf__loss rf__loss_forward(const float *logits, const int32_t *labels, int count,
                                 int classes) {
    struct rf__loss loss = {0};
    for (int i = 0; i < count; i++, logits += classes) {
        int largest;
        double spread = log_sum(logits, classes, &largest);
        loss.sum += spread + (double)logits[largest] - (double)logits[labels[i]];
        loss.correct += largest == labels[i];
    }
    return loss;
}

void rf__loss_backward(const float *logits, const int32_t *labels, int count, int rows, int classes,
                       float *gradient) {
    for (int i = 0; i < count; i++, logits += classes, gradient += classes) {
        int largest;
        double spread = log_sum(logits, classes, &largest);
        for (int k = 0; k < classes; k++) {
            double share = exp((double)logits[k] - (double)logits[largest] - spread);
            gradient[k] = (float)(share - (k == labels[i] ? 1.0 : 0.0));
        }
    }
    for (int i = 0; i < (rows - count) * classes; i++) {
        gradient[i] = 0.0f;
    }
}
