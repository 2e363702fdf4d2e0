/* Memory bandwidth without any framework: OpenMP loops over float arrays, best and median of the repetitions.
 *
 *   cc -O3 -march=native -fopenmp bandwidth.c -o bandwidth && ./bandwidth BYTES_OF_ONE_ARRAY
 *
 * add_in_place  a[i] += b[i]         moves three arrays: what paradnn.ceilings runs
 * add           c[i] = a[i] + b[i]   moves three arrays, and a fourth where the processor reads a line before writing it
 * triad         c[i] = a[i] + s b[i] STREAM's headline kernel, counted as three arrays
 * Prints one line for each: name, median B/s, best B/s.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define REPETITIONS 15

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)1 << 28;
    size_t count = bytes / sizeof(float);
    float *a = aligned_alloc(64, bytes), *b = aligned_alloc(64, bytes), *c = aligned_alloc(64, bytes);
    if (!a || !b || !c) {
        fprintf(stderr, "no memory for three arrays of %zu bytes\n", bytes);
        return 1;
    }
#pragma omp parallel for
    for (size_t i = 0; i < count; i++) {
        a[i] = 0.0f;
        b[i] = 1.0f;
        c[i] = 2.0f;
    }
    const char *names[] = {"add_in_place", "add", "triad"};
    for (int kernel = 0; kernel < 3; kernel++) {
        double rates[REPETITIONS];
        for (int repetition = 0; repetition < REPETITIONS; repetition++) {
            double begin = omp_get_wtime();
            if (kernel == 0) {
#pragma omp parallel for
                for (size_t i = 0; i < count; i++) a[i] += b[i];
            } else if (kernel == 1) {
#pragma omp parallel for
                for (size_t i = 0; i < count; i++) c[i] = a[i] + b[i];
            } else {
#pragma omp parallel for
                for (size_t i = 0; i < count; i++) c[i] = a[i] + 3.0f * b[i];
            }
            rates[repetition] = 3.0 * (double)bytes / (omp_get_wtime() - begin);
        }
        qsort(rates, REPETITIONS, sizeof(double), ascending);
        printf("%s %.6e %.6e\n", names[kernel], rates[REPETITIONS / 2], rates[REPETITIONS - 1]);
    }
    fprintf(stderr, "%f\n", (double)(a[count / 2] + c[count / 3])); /* or the compiler drops the loops */
    return 0;
}
