/* Rows of a batch, gathered from mapped files: the arguments are checked here, `_kernel_fill.c` fills the rows.
 *
 * Example. Two rows of 4 tokens, which give T = 3 inputs and targets; P is the padding.
 *
 *     files    a b c d e | f g h       the files 0 and 1
 *     spans    row 0 0 1   shard 0 1 0   start 0 1 3   length 2 1 2
 *     rows     a b g P     d e P P     texts begin at 0 2 4
 *     x        a b g       d e P       numbers     1 1 2   1 1 0      positions  0 1 0   0 1 0
 *     y        b g P       e P P       bounds      0 2 3 5 6
 *
 * Everything is checked before anything is written: that spans are inside their files and rows, and that arrays have
 * room for what the spans hold. A batch touches few of a dataset's thousands of files, so only those are opened.
 */

#include "_kernel_rows.h"
#include <string.h>

enum { LARGE = 1 << 17 }; /* values; while more are gathered, other threads may run */

/* Arrays of a tuple, of which some may be None. */
typedef struct {
    const char *name;
    int axes;
    Py_ssize_t width;
    const char *letters;
    int optional;
} Kind;

enum { MOST_ARRAYS = 10 };

typedef struct {
    Py_buffer views[MOST_ARRAYS];
    int held[MOST_ARRAYS], n;
} Arrays;

static void close_arrays(Arrays *arrays)
{
    for (int at = 0; at < arrays->n; at++) {
        if (arrays->held[at])
            PyBuffer_Release(&arrays->views[at]);
    }
    arrays->n = 0;
}

/* -1 is an error; `close_arrays` is due in any case. */
static int open_arrays(PyObject *tuple, Arrays *arrays, const Kind *kinds, int n, int writable, const char *name)
{
    arrays->n = 0;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != n) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of %d", name, n);
        return -1;
    }
    for (; arrays->n < n; arrays->n++) {
        const Kind *const kind = kinds + arrays->n;
        PyObject *const array = PyTuple_GetItem(tuple, arrays->n);
        arrays->held[arrays->n] = 0;
        if (kind->optional && array == Py_None)
            continue;
        if (open_array(array, &arrays->views[arrays->n], kind->axes, kind->width, kind->letters, writable, kind->name) < 0)
            return -1;
        arrays->held[arrays->n] = 1;
    }
    return 0;
}

static void *values_of(const Arrays *arrays, int at)
{
    return arrays->held[at] ? arrays->views[at].buf : NULL;
}

/* ------------------------------------------------------------------ files */

enum { IDS_FILE, MASK_FILE, SEGMENTS_FILE, FILES };

/* The files of a shard that spans are in. */
typedef struct {
    int64_t number;
    Py_buffer views[FILES];
    int held[FILES];
} Shard;

typedef struct {
    PyObject *files[FILES]; /* borrowed; sequences of arrays of one axis, or None: not read */
    Shard *shards;
    Py_ssize_t n;
    Py_ssize_t *found; /* a hash table of numbers in `shards` plus 1; 0 is a free place */
    size_t last;       /* its last place: the size, a power of 2, less 1 */
} Shards;

static void close_shards(Shards *shards)
{
    for (Py_ssize_t at = 0; at < shards->n; at++) {
        for (int kind = 0; kind < FILES; kind++) {
            if (shards->shards[at].held[kind])
                PyBuffer_Release(&shards->shards[at].views[kind]);
        }
    }
    PyMem_Free(shards->shards);
    PyMem_Free(shards->found);
}

/* Room for the shards of `spans` spans; -1 is an error. */
static int make_shards(Shards *shards, Py_ssize_t spans)
{
    size_t places = 8;
    while (places < 2 * (size_t)spans)
        places *= 2;
    shards->last = places - 1;
    shards->shards = PyMem_Calloc((size_t)spans + 1, sizeof(Shard));
    shards->found = PyMem_Calloc(places, sizeof(Py_ssize_t));
    if (shards->shards != NULL && shards->found != NULL)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static int open_file(PyObject *files, int kind, Shard *shard)
{
    static const char *const names[FILES] = {"ids", "masks", "segment ids"};
    PyObject *const array = PySequence_GetItem(files, (Py_ssize_t)shard->number);
    if (array == NULL)
        return -1;
    const int is_none = array == Py_None && kind == SEGMENTS_FILE; /* of a shard whose spans are one text each */
    const int failed = !is_none && PyObject_GetBuffer(array, &shard->views[kind], PyBUF_ND | PyBUF_FORMAT) < 0;
    Py_DECREF(array); /* the view holds the array */
    if (failed)
        return -1;
    if (is_none)
        return 0;
    shard->held[kind] = 1;
    const Py_buffer *const view = &shard->views[kind];
    const char *const format = view->format ? view->format : "B";
    const int unsigned_ = format[0] && !format[1] && strchr("BHIL", format[0]) != NULL;
    const int size = view->itemsize == 1 || (kind != MASK_FILE && (view->itemsize == 2 || view->itemsize == 4));
    if (view->ndim == 1 && unsigned_ && size && (uintptr_t)view->buf % (uintptr_t)view->itemsize == 0)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s of shard %lld must be an aligned array of one axis of uint8%s", names[kind],
                 (long long)shard->number, kind == MASK_FILE ? "" : ", uint16 or uint32");
    return -1;
}

/* The shard with a number, which is opened when it is first asked for; NULL with an error set. */
static const Shard *shard_of(Shards *shards, int64_t number)
{
    size_t place = (size_t)((uint64_t)number * 0x9E3779B97F4A7C15u >> 32) & shards->last;
    for (; shards->found[place] > 0; place = (place + 1) & shards->last) {
        const Shard *const shard = shards->shards + shards->found[place] - 1;
        if (shard->number == number)
            return shard;
    }
    Shard *const shard = shards->shards + shards->n++; /* there are no more shards than spans, see `make_shards` */
    shards->found[place] = shards->n;
    shard->number = number;
    for (int kind = 0; kind < FILES; kind++) {
        if (shards->files[kind] != Py_None && open_file(shards->files[kind], kind, shard) < 0)
            return NULL;
    }
    return shard;
}

/* ------------------------------------------------------------------ spans */

enum { ROW, SHARD, START, LENGTH, BEGINS, COPIED, SEES, COLUMNS };

static const Kind span_kinds[COLUMNS] = {
    {"row", 1, 8, "lq", 0},     {"shard", 1, 8, "lq", 0},  {"start", 1, 8, "lq", 0}, {"length", 1, 8, "lq", 0},
    {"begins", 1, 1, "?Bb", 1}, {"copied", 1, 1, "?Bb", 1}, {"sees", 1, 8, "lq", 1},
};

/* Spans as they are given. */
typedef struct {
    const int64_t *row, *shard, *start, *length, *sees;
    const uint8_t *begins, *copied;
    Py_ssize_t n;
} Given;

static int given_spans(const Arrays *arrays, Given *given)
{
    given->n = arrays->views[ROW].shape[0];
    for (int at = 0; at < COLUMNS; at++) {
        if (arrays->held[at] && arrays->views[at].shape[0] != given->n) {
            PyErr_SetString(PyExc_ValueError, "the arrays of spans must have one length");
            return -1;
        }
    }
    given->row = values_of(arrays, ROW);
    given->shard = values_of(arrays, SHARD);
    given->start = values_of(arrays, START);
    given->length = values_of(arrays, LENGTH);
    given->sees = values_of(arrays, SEES);
    given->begins = values_of(arrays, BEGINS);
    given->copied = values_of(arrays, COPIED);
    return 0;
}

/* Rows ascend from 0 to rows - 1, lengths are at least 1, no row's spans are longer than T + 1 together, and spans see
 * no more than that. How many values all spans have, or -1 with an error set. */
static Py_ssize_t check_spans(const Given *given, Py_ssize_t rows, Py_ssize_t T)
{
    const int64_t width = T + 1;
    int64_t used = 0, row = 0, all = 0;
    for (Py_ssize_t at = 0; at < given->n; at++) {
        const int64_t length = given->length[at], sees = given->sees == NULL ? 0 : given->sees[at];
        if (given->row[at] != row) {
            used = 0;
            if (given->row[at] < row) {
                PyErr_SetString(PyExc_ValueError, "the rows of spans must be 0 or more and must not descend");
                return -1;
            }
            row = given->row[at];
        }
        if (length < 1 || length > width - used || row >= rows) {
            PyErr_Format(PyExc_ValueError, "span %zd: row %lld of %zd, %lld values after %lld of %lld", at,
                         (long long)row, rows, (long long)length, (long long)used, (long long)width);
            return -1;
        }
        if (sees < 0 || sees > width) {
            PyErr_Format(PyExc_ValueError, "span %zd sees %lld values of a row of %lld", at, (long long)sees,
                         (long long)width);
            return -1;
        }
        used += length;
        all += length; /* no overflow: at most rows * (T + 1) */
    }
    return (Py_ssize_t)all;
}

/* The values of a span in a file; -1 if they are not in it, with an error set. */
static int find_values(const Shard *shard, int kind, const Given *given, Py_ssize_t at, Values *values)
{
    if (!shard->held[kind])
        return 0;
    const int64_t start = given->start[at], length = given->length[at];
    const int64_t items = shard->views[kind].shape[0];
    if (start < 0 || start > items - length) {
        PyErr_Format(PyExc_ValueError, "span %zd: %lld values from %lld on of a shard of %lld", at, (long long)length,
                     (long long)start, (long long)items);
        return -1;
    }
    values->width = shard->views[kind].itemsize;
    values->at = (const char *)shard->views[kind].buf + start * values->width;
    return 0;
}

/* New memory with the spans, whose values are proven to be in their files; NULL with an error set. */
static Span *make_spans(const Given *given, Shards *shards)
{
    Span *const spans = PyMem_Calloc((size_t)given->n + 1, sizeof(Span));
    if (spans == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t at = 0; at < given->n; at++) {
        Span *const span = spans + at;
        const int64_t number = given->shard[at];
        if (number < 0 || number > PY_SSIZE_T_MAX) {
            PyErr_Format(PyExc_ValueError, "span %zd: no shard %lld", at, (long long)number);
            goto failed;
        }
        const Shard *const shard = shard_of(shards, number);
        if (shard == NULL || find_values(shard, IDS_FILE, given, at, &span->ids) < 0 ||
            find_values(shard, MASK_FILE, given, at, &span->mask) < 0 ||
            find_values(shard, SEGMENTS_FILE, given, at, &span->segments) < 0)
            goto failed;
        span->row = (Py_ssize_t)given->row[at];
        span->length = (Py_ssize_t)given->length[at];
        span->sees = given->sees == NULL ? 0 : (Py_ssize_t)given->sees[at];
        span->begins = given->begins == NULL || given->begins[at] || at == 0 || given->row[at] != given->row[at - 1];
        span->copied = given->copied != NULL && given->copied[at];
    }
    return spans;
failed:
    PyMem_Free(spans);
    return NULL;
}

/* ------------------------------------------------------------------ rows */

enum { X, Y, MASK, NUMBERS, POSITIONS, PAIRS, PLACES, BOUNDS, TRAINED_OF, TOTALS_OF, OUTPUTS };

static const Kind output_kinds[OUTPUTS] = {
    {"x", 2, 8, "lq", 1},       {"y", 2, 8, "lq", 1},      {"mask", 2, 4, "f", 1},     {"numbers", 2, 4, "il", 1},
    {"positions", 2, 8, "lq", 1}, {"columns", 3, 4, "il", 1}, {"places", 1, 8, "lq", 1}, {"bounds", 1, 4, "il", 1},
    {"trained", 1, 8, "lq", 1}, {"totals", 2, 8, "lq", 1},
};

/* Whether the outputs have the shapes that `rows` says, and room for `texts` texts; 0 with an error set if not. */
static int outputs_fit(const Arrays *outputs, const Rows *rows, Py_ssize_t texts)
{
    const Py_ssize_t batches = rows->rows / rows->rows_of_batch;
    for (int at = 0; at < OUTPUTS; at++) {
        const Py_ssize_t *const shape = outputs->views[at].shape;
        int fits = 1;
        if (!outputs->held[at])
            continue;
        if (at <= PAIRS)
            fits = shape[0] == rows->rows && shape[1] == rows->T && (at < PAIRS || shape[2] == 2);
        else if (at == PLACES)
            fits = shape[0] >= texts;
        else if (at == BOUNDS)
            fits = shape[0] - rows->rows - batches >= texts;
        else
            fits = at == TRAINED_OF ? shape[0] == rows->rows : shape[0] == batches && shape[1] == TOTALS;
        if (!fits) {
            PyErr_Format(PyExc_ValueError, "%s has another shape than %zd rows of %zd with up to %zd texts need",
                         output_kinds[at].name, rows->rows, rows->T, texts);
            return 0;
        }
    }
    if (outputs->held[X] == outputs->held[Y] && outputs->held[NUMBERS] == outputs->held[POSITIONS])
        return 1;
    PyErr_SetString(PyExc_ValueError, "x and y, and numbers and positions, are wanted both or not at all");
    return 0;
}

/* Whether no size of `rows` can overflow; 0 with an error set if one can. */
static int sizes_fit(const Rows *rows)
{
    if (rows->rows < 0 || rows->T < 0 || rows->T >= INT32_MAX || rows->rows > PY_SSIZE_T_MAX / 16 / (rows->T + 1) ||
        rows->rows_of_batch < 1 || rows->rows % rows->rows_of_batch != 0 ||
        rows->rows_of_batch > INT32_MAX / (rows->T + 1) || rows->most < 0) {
        PyErr_Format(PyExc_ValueError,
                     "%zd rows of %zd values in batches of %zd with ids up to %lld: expected batches of less than 2^31 "
                     "values, rows for whole batches, and 0 or more", rows->rows, rows->T, rows->rows_of_batch,
                     (long long)rows->most);
        return 0;
    }
    return 1;
}

static void set_outputs(Rows *rows, const Arrays *outputs)
{
    rows->x = values_of(outputs, X);
    rows->y = values_of(outputs, Y);
    rows->mask = values_of(outputs, MASK);
    rows->numbers = values_of(outputs, NUMBERS);
    rows->positions = values_of(outputs, POSITIONS);
    rows->columns = values_of(outputs, PAIRS);
    rows->places = values_of(outputs, PLACES);
    rows->bounds = values_of(outputs, BOUNDS);
    rows->trained = values_of(outputs, TRAINED_OF);
    rows->totals = values_of(outputs, TOTALS_OF);
}

static void fill(Rows *rows)
{
    if (rows->rows * rows->T < LARGE) {
        fill_rows(rows); /* a thread that lets others run may wait for milliseconds until it can go on */
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    fill_rows(rows);
    Py_END_ALLOW_THREADS
}

const char gather_rows_doc[] = "gather_rows(spans, files, sizes, pad_id, most, outputs)\n--\n\n"
             "Write the rows of `spans` to `outputs`; `(ids, masks, places, bounds)`: whether all ids are `most` or less,\n"
             "whether all masks are 0 or 1 and no trained token lacks a context, and how many places and bounds there\n"
             "are.\n\n"
             "spans: row, shard, start, length, begins, copied, sees; files: sequences of ids, masks and segment ids;\n"
             "sizes: rows, T and rows of a batch. See `niels_gpt.format.gather`.";

PyObject *gather_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *span_tuple, *files, *output_tuple, *result = NULL;
    long long pad, most;
    Arrays span_arrays = {.n = 0}, outputs = {.n = 0};
    Shards shards = {.n = 0};
    Given given;
    Rows rows = {.n = 0};
    Span *spans = NULL;
    if (!PyArg_ParseTuple(args, "OO!(nnn)LLO:gather_rows", &span_tuple, &PyTuple_Type, &files, &rows.rows, &rows.T,
                          &rows.rows_of_batch, &pad, &most, &output_tuple))
        return NULL;
    if (PyTuple_Size(files) != FILES) {
        PyErr_SetString(PyExc_ValueError, "files must be those of ids, masks and segment ids");
        return NULL;
    }
    for (int kind = 0; kind < FILES; kind++)
        shards.files[kind] = PyTuple_GetItem(files, kind);
    rows.pad = pad;
    rows.most = most;
    if (!sizes_fit(&rows) || open_arrays(span_tuple, &span_arrays, span_kinds, COLUMNS, 0, "spans") < 0 ||
        open_arrays(output_tuple, &outputs, output_kinds, OUTPUTS, 1, "outputs") < 0 ||
        given_spans(&span_arrays, &given) < 0)
        goto done;
    const Py_ssize_t values = check_spans(&given, rows.rows, rows.T);
    if (values < 0 || !outputs_fit(&outputs, &rows, shards.files[SEGMENTS_FILE] == Py_None ? given.n : values) ||
        make_shards(&shards, given.n) < 0 || (spans = make_spans(&given, &shards)) == NULL)
        goto done;
    set_outputs(&rows, &outputs);
    if (rows.x != NULL && given.n > 0 && shards.files[IDS_FILE] == Py_None) {
        PyErr_SetString(PyExc_ValueError, "x and y need files of ids");
        goto done;
    }
    rows.spans = spans;
    rows.n = given.n;
    rows.shares = given.sees != NULL;
    rows.counts = rows.mask != NULL || rows.trained != NULL;
    fill(&rows);
    result = Py_BuildValue("(NNnn)", PyBool_FromLong(rows.sign >= 0), PyBool_FromLong(rows.bits <= 1 && !rows.lost),
                           rows.n_places, rows.n_bounds);
done:
    PyMem_Free(spans);
    close_shards(&shards);
    close_arrays(&outputs);
    close_arrays(&span_arrays);
    return result;
}

/* ------------------------------------------------------------------ windows */

enum { WINDOWS, FIRST, WINDOW_INPUTS };

static const Kind window_kinds[WINDOW_INPUTS] = {{"numbers", 1, 8, "lq", 0}, {"first", 1, 8, "lq", 0}};

/* The spans of windows, one a row: `columns` has room for ROW, SHARD, START and LENGTH of each. -1 is an error. */
static int place_windows(const Arrays *inputs, Py_ssize_t T, int64_t *columns, Given *given)
{
    const int64_t *const numbers = values_of(inputs, WINDOWS), *const first = values_of(inputs, FIRST);
    const Py_ssize_t n = inputs->views[WINDOWS].shape[0], shards = inputs->views[FIRST].shape[0];
    int64_t *const row = columns, *const shard = row + n, *const start = shard + n, *const length = start + n;
    for (Py_ssize_t at = 0; at < n; at++) {
        row[at] = at;
        shard[at] = at_most(first, shards, numbers[at]) - 1;
        if (shard[at] < 0 || first[shard[at]] < 0) {
            PyErr_Format(PyExc_ValueError, "there is no window %lld", (long long)numbers[at]);
            return -1;
        }
        start[at] = numbers[at] - first[shard[at]]; /* 0 or more, see `at_most` */
        length[at] = T + 1;
    }
    *given = (Given){.row = row, .shard = shard, .start = start, .length = length, .n = n};
    return 0;
}

const char gather_windows_doc[] = "gather_windows(windows, files, T, outputs)\n--\n\n"
             "Write inputs and targets of windows of T + 1 neighbouring values.\n\n"
             "windows: their numbers, and the first number of each file; outputs: x and y. See `niels_gpt.format.gather`.";

PyObject *gather_windows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *windows, *output_tuple, *result = NULL;
    Arrays inputs = {.n = 0}, outputs = {.n = 0};
    Shards shards = {.files = {NULL, Py_None, Py_None}};
    Given given;
    Rows rows = {.rows_of_batch = 1, .most = INT64_MAX};
    Span *spans = NULL;
    int64_t *columns = NULL;
    if (!PyArg_ParseTuple(args, "OOnO:gather_windows", &windows, &shards.files[IDS_FILE], &rows.T, &output_tuple))
        return NULL;
    if (open_arrays(windows, &inputs, window_kinds, WINDOW_INPUTS, 0, "windows") < 0 ||
        open_arrays(output_tuple, &outputs, output_kinds, 2, 1, "outputs") < 0)
        goto done;
    rows.n = rows.rows = inputs.views[WINDOWS].shape[0];
    if (!outputs.held[X] || !outputs.held[Y] || shards.files[IDS_FILE] == Py_None) {
        PyErr_SetString(PyExc_ValueError, "expected files, x and y");
        goto done;
    }
    if (!sizes_fit(&rows) || !outputs_fit(&outputs, &rows, 0))
        goto done;
    columns = PyMem_Calloc((size_t)rows.n + 1, 4 * sizeof(int64_t));
    if (columns == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (place_windows(&inputs, rows.T, columns, &given) < 0 || make_shards(&shards, given.n) < 0 ||
        (spans = make_spans(&given, &shards)) == NULL)
        goto done;
    set_outputs(&rows, &outputs);
    rows.spans = spans;
    fill(&rows);
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(columns);
    PyMem_Free(spans);
    close_shards(&shards);
    close_arrays(&outputs);
    close_arrays(&inputs);
    return result;
}
