/* Rows of a batch, gathered from mapped files.
 *
 *   gather_ids    the ids of spans -> inputs and targets as int64, padded
 *   gather_mask   the masks of spans -> the mask of the targets as float32, and trained targets of each row
 *   text_starts   where texts begin in the rows
 *   number_texts  where texts begin -> segment ids, positions and the bounds of the sequences
 *
 * Example. Two rows of 4 tokens (`width`), which give 3 inputs and 3 targets; P is the padding.
 *
 *     files    a b c d e | f g h       the files 0 and 1
 *     spans    row 0 0 1   shard 0 1 0   start 0 1 3   length 2 1 2
 *     rows     a b g P     d e P P     text starts 0 2 4
 *     x        a b g       d e P       numbers     1 1 2   1 1 0      positions  0 1 0   0 1 0
 *     y        b g P       e P P       cu_seqlens  0 2 3 5 6
 *
 * A span is opened as it comes: of a dataset with thousands of files, a batch touches few.
 */

#include "_kernel.h"
#include <stdint.h>
#include <string.h>

#define MOST_AXES 2

/* Open a writable or readable array of `axes` axes in C order, of items of `width` bytes with a format among `letters`.
 * -1 is an error, with nothing held; else the caller releases `view`. */
static int open_array(PyObject *array, Py_buffer *view, int axes, Py_ssize_t width, const char *letters, int writable,
                      const char *name)
{
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0)
        return -1;
    const char *const format = view->format ? view->format : "B";
    const int known = view->itemsize == width && format[0] && !format[1] && strchr(letters, format[0]) != NULL;
    if (view->ndim != axes || !known || (uintptr_t)view->buf % (uintptr_t)width != 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be an aligned array of %d axes of items of %zd bytes; found %d axes of items of %zd bytes, "
                     "format %.20s", name, axes, width, view->ndim, view->itemsize, format);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

/* ------------------------------------------------------------------ spans and their files */

enum { ROW, SHARD, START, LENGTH, COLUMNS };

typedef struct {
    Py_buffer views[COLUMNS];
    int opened;
    const int64_t *of[COLUMNS];
    Py_ssize_t n;
} Spans;

static void close_spans(Spans *spans)
{
    while (spans->opened > 0)
        PyBuffer_Release(&spans->views[--spans->opened]);
}

/* Open `tuple` and check that rows ascend from 0 to rows - 1, that lengths are at least 1, and that no row's spans are
 * longer than `width`. -1 is an error; `close_spans` is due in any case. */
static int open_spans(PyObject *tuple, Spans *spans, Py_ssize_t rows, Py_ssize_t width)
{
    static const char *const names[COLUMNS] = {"row", "shard", "start", "length"};
    spans->opened = 0;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != COLUMNS) {
        PyErr_SetString(PyExc_TypeError, "spans must be a tuple of the arrays row, shard, start and length");
        return -1;
    }
    for (; spans->opened < COLUMNS; spans->opened++) {
        const int at = spans->opened;
        if (open_array(PyTuple_GetItem(tuple, at), &spans->views[at], 1, 8, "lq", 0, names[at]) < 0)
            return -1;
        spans->of[at] = spans->views[at].buf;
        const Py_ssize_t n = spans->views[at].len / 8;
        if (at > 0 && n != spans->n) {
            PyErr_SetString(PyExc_ValueError, "the arrays of spans must have one length");
            spans->opened++;
            return -1;
        }
        spans->n = n;
    }
    int64_t used = 0, row = 0;
    for (Py_ssize_t at = 0; at < spans->n; at++) {
        const int64_t length = spans->of[LENGTH][at];
        if (spans->of[ROW][at] != row) {
            used = 0;
            if (spans->of[ROW][at] < row) {
                PyErr_SetString(PyExc_ValueError, "the rows of spans must be 0 or more and must not descend");
                return -1;
            }
            row = spans->of[ROW][at];
        }
        if (length < 1 || length > width - used || row >= rows) {
            PyErr_Format(PyExc_ValueError, "span %zd: row %lld of %zd, %lld values after %lld of %zd", at,
                         (long long)row, rows, (long long)length, (long long)used, width);
            return -1;
        }
        used += length;
    }
    return 0;
}

/* The file of the span that is read now. It stays open while the next spans are of the same file. */
typedef struct {
    PyObject *files; /* borrowed; a sequence of arrays of one axis, uint8, uint16 or uint32, or None */
    Py_buffer view;
    int64_t shard;    /* -1: none is open */
    Py_ssize_t width; /* bytes of a value; 0: the item is None, and nothing is open */
} File;

static void close_file(File *file)
{
    if (file->shard >= 0 && file->width > 0)
        PyBuffer_Release(&file->view);
    file->shard = -1;
}

static int open_file(File *file, int64_t shard)
{
    close_file(file);
    PyObject *const array = PySequence_GetItem(file->files, (Py_ssize_t)shard);
    if (array == NULL)
        return -1;
    const int is_none = array == Py_None;
    const int failed = !is_none && PyObject_GetBuffer(array, &file->view, PyBUF_ND | PyBUF_FORMAT) < 0;
    Py_DECREF(array); /* the view holds the array */
    if (failed)
        return -1;
    file->shard = shard;
    file->width = is_none ? 0 : file->view.itemsize;
    if (is_none)
        return 0;
    const char *const format = file->view.format ? file->view.format : "B";
    const int unsigned_ = format[0] && !format[1] && strchr("BHIL", format[0]) != NULL;
    const int size = file->width == 1 || file->width == 2 || file->width == 4;
    if (file->view.ndim != 1 || !unsigned_ || !size || (uintptr_t)file->view.buf % (uintptr_t)file->width != 0) {
        PyErr_Format(PyExc_TypeError, "shard %lld must be an aligned array of one axis of uint8, uint16 or uint32",
                     (long long)shard);
        PyBuffer_Release(&file->view);
        file->shard = -1;
        return -1;
    }
    return 0;
}

/* The first value of a span, of `file->width` bytes; NULL with an error set. */
static const void *open_span(File *file, const Spans *spans, Py_ssize_t at)
{
    const int64_t shard = spans->of[SHARD][at], start = spans->of[START][at], length = spans->of[LENGTH][at];
    if (shard < 0 || shard > PY_SSIZE_T_MAX) {
        PyErr_Format(PyExc_ValueError, "span %zd: no shard %lld", at, (long long)shard);
        return NULL;
    }
    if (shard != file->shard && open_file(file, shard) < 0)
        return NULL;
    if (file->width == 0)
        return ""; /* a file of nothing, which is not read */
    const int64_t items = file->view.len / file->width;
    if (start < 0 || start > items - length) {
        PyErr_Format(PyExc_ValueError, "span %zd: %lld values from %lld on of a shard of %lld", at, (long long)length,
                     (long long)start, (long long)items);
        return NULL;
    }
    return (const char *)file->view.buf + start * file->width;
}

/* ------------------------------------------------------------------ ids */

/* Processors of the last ten years have wider vectors than every x86-64; the dynamic linker chooses the function. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WIDE_VECTORS
#endif

/* Copy `n` unsigned values as int64. The result is negative if one of them is above `most`. */
#define WIDEN(name, type)                                                                                              \
    WIDE_VECTORS static int64_t name(const type *restrict from, Py_ssize_t n, int64_t *restrict to, int64_t most)      \
    {                                                                                                                  \
        int64_t sign = 0;                                                                                              \
        for (Py_ssize_t k = 0; k < n; k++) {                                                                           \
            const int64_t value = (int64_t)from[k];                                                                    \
            to[k] = value;                                                                                             \
            sign |= most - value; /* no comparison: vector units of every processor subtract 64-bit numbers */         \
        }                                                                                                              \
        return sign;                                                                                                   \
    }
WIDEN(widen_8, uint8_t)
WIDEN(widen_16, uint16_t)
WIDEN(widen_32, uint32_t)

static int64_t widen(const void *from, Py_ssize_t width, Py_ssize_t skip, Py_ssize_t n, int64_t *to, int64_t most)
{
    if (n <= 0)
        return 0;
    if (width == 4)
        return widen_32((const uint32_t *)from + skip, n, to, most);
    if (width == 2)
        return widen_16((const uint16_t *)from + skip, n, to, most);
    return widen_8((const uint8_t *)from + skip, n, to, most);
}

static void fill_ids(int64_t *to, Py_ssize_t n, int64_t value)
{
    for (Py_ssize_t k = 0; k < n; k++)
        to[k] = value;
}

const char gather_ids_doc[] = "gather_ids(files, spans, pad_id, most, x, y)\n--\n\n"
             "Write the spans' ids, shifted and padded, to `x` and `y`; whether all ids are `most` or less.\n\n"
             "See `niels_gpt.format.gather`.";

PyObject *gather_ids(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *span_arrays, *x_array, *y_array, *result = NULL;
    long long pad, most;
    Py_buffer x_view, y_view;
    Spans spans = {.opened = 0};
    File file = {.shard = -1};
    if (!PyArg_ParseTuple(args, "OOLLOO:gather_ids", &file.files, &span_arrays, &pad, &most, &x_array, &y_array))
        return NULL;
    if (most < 0) {
        PyErr_SetString(PyExc_ValueError, "most must be 0 or more");
        return NULL;
    }
    if (open_array(x_array, &x_view, MOST_AXES, 8, "lq", 1, "x") < 0)
        return NULL;
    if (open_array(y_array, &y_view, MOST_AXES, 8, "lq", 1, "y") < 0) {
        PyBuffer_Release(&x_view);
        return NULL;
    }
    const Py_ssize_t rows = x_view.shape[0], T = x_view.shape[1];
    if (y_view.shape[0] != rows || y_view.shape[1] != T) {
        PyErr_SetString(PyExc_ValueError, "x and y must have one shape");
        goto done;
    }
    if (open_spans(span_arrays, &spans, rows, T + 1) < 0)
        goto done;
    int64_t *const x = x_view.buf, *const y = y_view.buf;
    int64_t sign = 0;
    Py_ssize_t at = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t *const own_x = x + row * T, *const own_y = y + row * T;
        Py_ssize_t column = 0; /* tokens of the row so far; token c is x[c] and y[c - 1] */
        for (; at < spans.n && spans.of[ROW][at] == row; at++) {
            const void *const values = open_span(&file, &spans, at);
            if (values == NULL)
                goto done;
            if (file.width == 0) {
                PyErr_SetString(PyExc_TypeError, "a shard of ids is None");
                goto done;
            }
            const Py_ssize_t length = (Py_ssize_t)spans.of[LENGTH][at], first = column == 0;
            const Py_ssize_t inputs = length < T - column ? length : T - column;
            sign |= widen(values, file.width, 0, inputs, own_x + column, most);
            sign |= widen(values, file.width, first, length - first, own_y + column + first - 1, most);
            column += length;
        }
        if (column < T)
            fill_ids(own_x + column, T - column, pad);
        const Py_ssize_t targets = column > 0 ? column - 1 : 0;
        fill_ids(own_y + targets, T - targets, pad);
    }
    result = PyBool_FromLong(sign >= 0);
done:
    close_file(&file);
    close_spans(&spans);
    PyBuffer_Release(&x_view);
    PyBuffer_Release(&y_view);
    return result;
}

/* ------------------------------------------------------------------ masks */

/* Copy `n` mask values as float32, add them to `sum`; the result is above 1 if one of them is. */
WIDE_VECTORS static uint8_t copy_mask(const uint8_t *restrict from, Py_ssize_t n, float *restrict to, int64_t *sum)
{
    uint8_t bits = 0;
    int64_t own = 0;
    while (n > 0) {
        const Py_ssize_t block = n < 128 ? n : 128; /* so that a vector of bytes holds the sum of a block */
        uint32_t part = 0;
        for (Py_ssize_t k = 0; k < block; k++) {
            to[k] = (float)from[k];
            bits |= from[k];
            part += from[k];
        }
        own += part;
        from += block;
        to += block;
        n -= block;
    }
    *sum += own;
    return bits;
}

const char gather_mask_doc[] = "gather_mask(files, spans, places, mask, trained)\n--\n\n"
             "Write the mask of the targets to `mask` and the trained targets of each row to `trained`; whether all\n"
             "values are 0 or 1. Without files (`None`) every value of a span is 1.\n\n"
             "See `niels_gpt.format.gather`.";

PyObject *gather_mask(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *span_arrays, *place_array, *mask_array, *trained_array, *result = NULL;
    Py_buffer views[3]; /* places, mask, trained */
    int opened = 0;
    Spans spans = {.opened = 0};
    File file = {.shard = -1};
    if (!PyArg_ParseTuple(args, "OOOOO:gather_mask", &file.files, &span_arrays, &place_array, &mask_array,
                          &trained_array))
        return NULL;
    if (open_array(place_array, &views[0], 1, 8, "lq", 0, "places") < 0)
        goto done;
    opened++;
    if (open_array(mask_array, &views[1], MOST_AXES, 4, "f", 1, "mask") < 0)
        goto done;
    opened++;
    if (open_array(trained_array, &views[2], 1, 8, "lq", 1, "trained") < 0)
        goto done;
    opened++;
    const Py_ssize_t rows = views[1].shape[0], T = views[1].shape[1];
    if (views[2].shape[0] != rows) {
        PyErr_SetString(PyExc_ValueError, "trained must have one number for each row of the mask");
        goto done;
    }
    if (open_spans(span_arrays, &spans, rows, T + 1) < 0)
        goto done;
    float *const mask = views[1].buf;
    int64_t *const trained = views[2].buf;
    uint8_t bits = 0;
    Py_ssize_t at = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        float *const own = mask + row * T;
        Py_ssize_t column = 0; /* tokens of the row so far; token c is the target c - 1 */
        trained[row] = 0;
        for (; at < spans.n && spans.of[ROW][at] == row; at++) {
            const Py_ssize_t length = (Py_ssize_t)spans.of[LENGTH][at], first = column == 0;
            if (file.files == Py_None) {
                for (Py_ssize_t k = first; k < length; k++)
                    own[column + k - 1] = 1;
                trained[row] += length - first;
            } else {
                const uint8_t *const values = open_span(&file, &spans, at);
                if (values == NULL)
                    goto done;
                if (file.width != 1) {
                    PyErr_SetString(PyExc_TypeError, "masks must be uint8");
                    goto done;
                }
                bits |= first ? values[0] : 0; /* no target, but it must be a mask value, too */
                bits |= copy_mask(values + first, length - first, own + column + first - 1, &trained[row]);
            }
            column += length;
        }
        const Py_ssize_t targets = column > 0 ? column - 1 : 0;
        memset(own + targets, 0, (size_t)(T - targets) * sizeof(float));
    }
    /* Nothing in a text predicts its first token. */
    const int64_t *const places = views[0].buf;
    for (Py_ssize_t k = 0; k < views[0].shape[0]; k++) {
        const int64_t row = places[k] / (T + 1), column = places[k] % (T + 1);
        if (places[k] < 0 || row >= rows) {
            PyErr_Format(PyExc_ValueError, "place %lld is outside of %zd rows of %zd tokens", (long long)places[k], rows,
                         T + 1);
            goto done;
        }
        if (column > 0 && mask[row * T + column - 1] != 0) {
            mask[row * T + column - 1] = 0;
            trained[row]--;
        }
    }
    result = PyBool_FromLong(bits <= 1);
done:
    close_file(&file);
    close_spans(&spans);
    while (opened > 0)
        PyBuffer_Release(&views[--opened]);
    return result;
}

/* ------------------------------------------------------------------ texts */

/* The index of the first of `n` values of `width` bytes, from `at` on, that differs from the one before it, or `n`. */
static Py_ssize_t next_change(const char *values, Py_ssize_t width, Py_ssize_t at, Py_ssize_t n)
{
    const Py_ssize_t block = 8 / width; /* values that are compared at once: few differ */
    for (; at + block <= n; at += block) {
        uint64_t these, before;
        memcpy(&these, values + at * width, 8);
        memcpy(&before, values + (at - 1) * width, 8);
        if (these != before)
            break;
    }
    while (at < n && memcmp(values + at * width, values + (at - 1) * width, (size_t)width) == 0)
        at++;
    return at;
}

const char text_starts_doc[] = "text_starts(files, spans, width, places)\n--\n\n"
             "Write where texts begin in the flattened rows to `places`, ascending; how many there are.\n\n"
             "A text begins with each span, and inside a span where the segment ids of `files` change. `files` may be\n"
             "None, and so may each of its items: such spans are one text. See `niels_gpt.format.gather`.";

PyObject *text_starts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *files, *span_arrays, *place_array, *result = NULL;
    Py_ssize_t width;
    Py_buffer view;
    Spans spans = {.opened = 0};
    File file = {.shard = -1};
    if (!PyArg_ParseTuple(args, "OOnO:text_starts", &files, &span_arrays, &width, &place_array))
        return NULL;
    file.files = files;
    if (open_array(place_array, &view, 1, 8, "lq", 1, "places") < 0)
        return NULL;
    if (width < 1 || open_spans(span_arrays, &spans, PY_SSIZE_T_MAX / width, width) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "width must be 1 or more");
        goto done;
    }
    int64_t *const places = view.buf;
    Py_ssize_t found = 0, column = 0;
    for (Py_ssize_t at = 0; at < spans.n; at++) {
        if (at > 0 && spans.of[ROW][at] != spans.of[ROW][at - 1])
            column = 0;
        const int64_t begin = spans.of[ROW][at] * width + column;
        const Py_ssize_t length = (Py_ssize_t)spans.of[LENGTH][at];
        Py_ssize_t k = 0;
        const char *values = NULL;
        if (files != Py_None) {
            values = open_span(&file, &spans, at);
            if (values == NULL)
                goto done;
            if (file.width == 0)
                values = NULL; /* a shard without segment ids */
        }
        do {
            if (found == view.shape[0]) {
                PyErr_SetString(PyExc_ValueError, "there are more texts than places");
                goto done;
            }
            places[found++] = begin + k;
            k = values == NULL ? length : next_change(values, file.width, k + 1, length);
        } while (k < length);
        column += length;
    }
    result = PyLong_FromSsize_t(found);
done:
    close_file(&file);
    close_spans(&spans);
    PyBuffer_Release(&view);
    return result;
}

const char number_texts_doc[] = "number_texts(places, used, numbers, positions, bounds)\n--\n\n"
             "Number the texts of each row from 1 and their tokens from 0; padding is a text with the number 0.\n\n"
             "Writes the bounds of all texts that have an input to `bounds`, with the end; how many there are.\n\n"
             "See `niels_gpt.format.gather`.";

PyObject *number_texts(PyObject *Py_UNUSED(module), PyObject *args)
{
    enum { PLACES, USED, NUMBERS, POSITIONS, BOUNDS, VIEWS };
    static const char *const names[VIEWS] = {"places", "used", "numbers", "positions", "bounds"};
    static const int axes[VIEWS] = {1, 1, 2, 2, 1};
    static const Py_ssize_t widths[VIEWS] = {8, 8, 4, 8, 4};
    PyObject *arrays[VIEWS], *result = NULL;
    Py_buffer views[VIEWS];
    int opened = 0;
    if (!PyArg_ParseTuple(args, "OOOOO:number_texts", &arrays[PLACES], &arrays[USED], &arrays[NUMBERS],
                          &arrays[POSITIONS], &arrays[BOUNDS]))
        return NULL;
    for (; opened < VIEWS; opened++) {
        if (open_array(arrays[opened], &views[opened], axes[opened], widths[opened], widths[opened] == 8 ? "lq" : "il",
                       opened >= NUMBERS, names[opened]) < 0)
            goto done;
    }
    const int64_t *const places = views[PLACES].buf, *const used = views[USED].buf;
    int32_t *const numbers = views[NUMBERS].buf, *const bounds = views[BOUNDS].buf;
    int64_t *const positions = views[POSITIONS].buf;
    const Py_ssize_t rows = views[NUMBERS].shape[0], T = views[NUMBERS].shape[1], texts = views[PLACES].shape[0];
    if (views[POSITIONS].shape[0] != rows || views[POSITIONS].shape[1] != T || views[USED].shape[0] != rows ||
        views[BOUNDS].shape[0] < texts + rows + 1 || (T > 0 && rows > INT32_MAX / T)) {
        PyErr_SetString(PyExc_ValueError, "numbers and positions must have one shape of less than 2^31 places, used one "
                                          "number for each row, and bounds one place for each text and row and the end");
        goto done;
    }
    Py_ssize_t at = 0, found = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int64_t begin = row * (T + 1);
        const Py_ssize_t end = used[row] < T ? (Py_ssize_t)used[row] : T;
        Py_ssize_t column = 0;
        int32_t number = 0;
        while (column < T) {
            /* From here to `stop`: the padding, or a text that ends where the next one or the padding begins. */
            Py_ssize_t stop = T;
            int32_t own = 0;
            if (column < end) {
                if (at == texts || places[at] != begin + column) {
                    PyErr_Format(PyExc_ValueError, "no text begins at column %zd of row %zd", column, row);
                    goto done;
                }
                at++;
                own = ++number;
                if (at < texts && places[at] <= begin + column) {
                    PyErr_SetString(PyExc_ValueError, "places must ascend");
                    goto done;
                }
                stop = at < texts && places[at] < begin + end ? (Py_ssize_t)(places[at] - begin) : end;
            } else if (used[row] < 0) {
                PyErr_SetString(PyExc_ValueError, "used must be 0 or more");
                goto done;
            }
            bounds[found++] = (int32_t)(row * T + column);
            for (Py_ssize_t k = column; k < stop; k++)
                numbers[row * T + k] = own;
            for (Py_ssize_t k = column; k < stop; k++)
                positions[row * T + k] = k - column;
            column = stop;
        }
        while (at < texts && places[at] == begin + T) /* a text whose only token is the row's last target */
            at++;
    }
    if (at != texts) {
        PyErr_Format(PyExc_ValueError, "text %zd begins outside of the tokens of the rows", at);
        goto done;
    }
    bounds[found++] = (int32_t)(rows * T);
    result = PyLong_FromSsize_t(found);
done:
    while (opened > 0)
        PyBuffer_Release(&views[--opened]);
    return result;
}
