/* Finds the spans of rows: row -> positions of its episodes -> episodes -> records of the shards' indexes -> spans.
 *
 * Example. Rows of 4 tokens; the plan puts the episodes at positions 2 and 0 into row 1; position 2 is episode 3,
 * because episode 1 is left out; shards of 2 and 3 episodes, so episode 3 is record 1 of the second shard.
 *
 *     rows 1      positions 2 0      episodes 3 0      shards 1 0      records 1 0
 *
 * An episode with a prefix has two spans. What does not fit into a row is cut: the end, or with `tail` the beginning.
 */

#include "_kernel.h"
#include <stdint.h>
#include <string.h>

enum { RECORDS, PREFIXES, FILES };

typedef struct {
    int64_t start, length;
} Record;

/* The files of the shard that was looked up last. */
typedef struct {
    PyObject *files[FILES]; /* borrowed; sequences of arrays of records, or None */
    Py_buffer views[FILES];
    int held[FILES];
    int64_t shard; /* -1: none */
} Index;

static void close_index(Index *index)
{
    for (int kind = 0; kind < FILES; kind++) {
        if (index->held[kind])
            PyBuffer_Release(&index->views[kind]);
        index->held[kind] = 0;
    }
    index->shard = -1;
}

static int open_index(Index *index, int64_t shard)
{
    static const char *const names[FILES] = {"records", "prefixes"};
    close_index(index);
    for (int kind = 0; kind < FILES; kind++) {
        if (index->files[kind] == Py_None)
            continue;
        PyObject *const array = PySequence_GetItem(index->files[kind], (Py_ssize_t)shard);
        if (array == NULL)
            return -1;
        const int is_none = array == Py_None && kind == PREFIXES;
        const int failed = !is_none && open_array(array, &index->views[kind], 2, 8, "LQlq", 0, names[kind]) < 0;
        Py_DECREF(array); /* the view holds the array */
        if (failed)
            return -1;
        index->held[kind] = !is_none;
        if (!is_none && index->views[kind].shape[1] != 2) {
            PyErr_Format(PyExc_ValueError, "%s must have two columns", names[kind]);
            return -1;
        }
    }
    index->shard = shard;
    return 0;
}

/* Record `at` of a file of the open shard; lengths 0 if there is no such file. -1 with an error set if there is no such
 * record, or a number is not below 2^62, so that sums cannot overflow. */
static int read_record(const Index *index, int kind, int64_t at, Record *record)
{
    record->start = record->length = 0;
    if (!index->held[kind])
        return 0;
    const Py_buffer *const view = &index->views[kind];
    if (at >= 0 && at < view->shape[0]) {
        const uint64_t *const pair = (const uint64_t *)view->buf + 2 * at;
        record->start = (int64_t)pair[0];
        record->length = (int64_t)pair[1];
        if (pair[0] >> 62 == 0 && pair[1] >> 62 == 0)
            return 0;
    }
    PyErr_Format(PyExc_ValueError, "record %lld of shard %lld is missing or out of range", (long long)at,
                 (long long)index->shard);
    return -1;
}

/* ------------------------------------------------------------------ spans */

/* The columns of the result, `room` values each, in this order; see `episodes/spans.py`. */
enum { ROW, EPISODE, SHARD, START, LENGTH, NUMBERS };
enum { CUT, BEGINS, COPIED, FLAGS };

enum { ROWS_OF, OFFSETS, ITEMS, DROPPED, FIRST, VIEWS };

typedef struct {
    Py_buffer views[VIEWS];
    int held[VIEWS];
    Index index;
    Py_ssize_t width;
    int tail;
    int64_t *numbers[NUMBERS];
    uint8_t *flags[FLAGS];
    int64_t *used;
    Py_ssize_t room, n;
} Locating;

static const int64_t *int64s(const Locating *to, int view)
{
    return to->views[view].buf;
}

/* A value of a plan. Plans are mapped from archives, in which values are at any address. */
static int64_t plan_value(const Py_buffer *view, int64_t at)
{
    int64_t wide;
    int32_t narrow;
    const char *const value = (const char *)view->buf + at * view->itemsize;
    if (view->itemsize == 8) {
        memcpy(&wide, value, sizeof wide);
        return wide;
    }
    memcpy(&narrow, value, sizeof narrow);
    return narrow;
}

static int open_plan(PyObject *array, Py_buffer *view, const char *name)
{
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    format += format[0] == '='; /* how numpy says that values are not aligned */
    const int known = format[0] && !format[1] && strchr("ilq", format[0]) != NULL;
    if (view->ndim == 1 && known && (view->itemsize == 4 || view->itemsize == 8))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s must be an array of one axis of int32 or int64; found %d axes, format %.20s", name,
                 view->ndim, view->format ? view->format : "B");
    PyBuffer_Release(view);
    return -1;
}

/* The part of a range of an episode that is in the row: the range is tokens `at` on of it, the row has `begin` on. */
static int add_range(Locating *to, Py_ssize_t row, int64_t episode, Record range, int64_t at, int64_t begin, int copied)
{
    const int64_t end = begin + to->width, stop = at + range.length;
    const int64_t low = at > begin ? at : begin, high = stop < end ? stop : end;
    if (high <= low)
        return 0;
    const Py_ssize_t n = to->n++; /* there is room: see `make_room` */
    to->numbers[ROW][n] = row;
    to->numbers[EPISODE][n] = episode;
    to->numbers[SHARD][n] = to->index.shard;
    to->numbers[START][n] = range.start + low - at;
    to->numbers[LENGTH][n] = high - low;
    to->flags[CUT][n] = 0;
    to->flags[BEGINS][n] = 1;
    to->flags[COPIED][n] = (uint8_t)copied;
    to->used[row] += high - low;
    return 1;
}

/* The spans of the episode at a position; -1 is an error. */
static int add_episode(Locating *to, Py_ssize_t row, int64_t position)
{
    const Py_ssize_t shards = to->views[FIRST].shape[0] - 1;
    const int64_t *const first = int64s(to, FIRST);
    if (position < 0 || position > INT64_MAX / 2) {
        PyErr_Format(PyExc_ValueError, "there is no position %lld", (long long)position);
        return -1;
    }
    const int64_t episode = position + at_most(int64s(to, DROPPED), to->views[DROPPED].shape[0], position);
    const int64_t shard = at_most(first, shards + 1, episode) - 1;
    if (shard < 0 || shard >= shards || first[shard] < 0) {
        PyErr_Format(PyExc_ValueError, "there is no episode %lld", (long long)episode);
        return -1;
    }
    Record prefix, own;
    if ((shard != to->index.shard && open_index(&to->index, shard) < 0) ||
        read_record(&to->index, RECORDS, episode - first[shard], &own) < 0 ||
        read_record(&to->index, PREFIXES, episode - first[shard], &prefix) < 0)
        return -1;
    const int64_t whole = prefix.length + own.length;
    const int64_t begin = to->tail && whole > to->width ? whole - to->width : 0;
    const int before = add_range(to, row, episode, prefix, 0, begin, 1);
    const int after = add_range(to, row, episode, own, prefix.length, begin, 0);
    if (before && after)
        to->flags[BEGINS][to->n - 1] = 0;
    if (before || after)
        to->flags[CUT][to->n - 1] = whole > to->width;
    return 0;
}

/* Which positions a row has: one, or with a plan items `low` to `high` - 1 of it; -1 is an error. */
static int positions_of(const Locating *to, int64_t row, int64_t *low, int64_t *high)
{
    const Py_buffer *const offsets = &to->views[OFFSETS];
    if (!to->held[OFFSETS]) {
        *low = row;
        *high = row < INT64_MAX ? row + 1 : row;
        if (*low < *high)
            return 0;
    } else if (row < offsets->shape[0] - 1) {
        *low = plan_value(offsets, row);
        *high = plan_value(offsets, row + 1);
        if (*low >= 0 && *low <= *high && *high <= to->views[ITEMS].shape[0])
            return 0;
    }
    PyErr_Format(PyExc_ValueError, "there is no row %lld", (long long)row);
    return -1;
}

/* A new bytearray for the spans of all rows; NULL with an error set. */
static PyObject *make_room(Locating *to)
{
    const int64_t *const rows = int64s(to, ROWS_OF);
    const Py_ssize_t n = to->views[ROWS_OF].shape[0], spans = to->index.files[PREFIXES] == Py_None ? 1 : 2;
    enum { BYTES = 8 * NUMBERS + FLAGS };
    int64_t low, high;
    for (Py_ssize_t row = 0; row < n; row++) {
        if (rows[row] < 0)
            continue;
        if (positions_of(to, rows[row], &low, &high) < 0)
            return NULL;
        if (high - low > PY_SSIZE_T_MAX / (2 * BYTES) - to->room - n) {
            PyErr_NoMemory();
            return NULL;
        }
        to->room += (Py_ssize_t)(high - low) * spans;
    }
    PyObject *const made = PyByteArray_FromStringAndSize(NULL, 8 * n + to->room * BYTES);
    if (made == NULL)
        return NULL;
    to->used = (int64_t *)PyByteArray_AsString(made); /* aligned: the memory is that of an allocation */
    memset(to->used, 0, (size_t)n * 8);
    for (int column = 0; column < NUMBERS; column++)
        to->numbers[column] = to->used + n + column * to->room;
    for (int flag = 0; flag < FLAGS; flag++)
        to->flags[flag] = (uint8_t *)(to->used + n + NUMBERS * to->room) + flag * to->room;
    return made;
}

static int add_rows(Locating *to)
{
    const int64_t *const rows = int64s(to, ROWS_OF);
    int64_t low, high;
    for (Py_ssize_t row = 0; row < to->views[ROWS_OF].shape[0]; row++) {
        if (rows[row] < 0)
            continue; /* an empty row */
        if (positions_of(to, rows[row], &low, &high) < 0)
            return -1;
        for (; low < high; low++) {
            if (add_episode(to, row, to->held[ITEMS] ? plan_value(&to->views[ITEMS], low) : low) < 0)
                return -1;
        }
    }
    return 0;
}

static int open_views(Locating *to, PyObject *const *arrays)
{
    static const char *const names[VIEWS] = {"rows", "offsets", "items", "dropped", "first"};
    for (int at = 0; at < VIEWS; at++) {
        const int of_plan = at == OFFSETS || at == ITEMS;
        if (of_plan && arrays[at] == Py_None)
            continue;
        if ((of_plan ? open_plan(arrays[at], &to->views[at], names[at])
                     : open_array(arrays[at], &to->views[at], 1, 8, "lq", 0, names[at])) < 0)
            return -1;
        to->held[at] = 1;
    }
    if (to->held[OFFSETS] == to->held[ITEMS] && to->views[FIRST].shape[0] > 0 && to->width > 0 &&
        to->width < INT32_MAX)
        return 0;
    PyErr_SetString(PyExc_ValueError, "expected a plan's offsets and items or neither, where shards begin and end, and a "
                                      "width from 1 to 2^31");
    return -1;
}

const char locate_doc[] = "locate(rows, offsets, items, dropped, first, records, prefixes, width, tail)\n--\n\n"
             "The spans of rows, as a bytearray of columns: `(room, spans, bytearray)`; see `niels_gpt.episodes.spans`.";

PyObject *locate(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *arrays[VIEWS], *made = NULL, *result = NULL;
    Locating to = {.index = {.shard = -1}};
    if (!PyArg_ParseTuple(args, "OOOOOOOnp:locate", &arrays[ROWS_OF], &arrays[OFFSETS], &arrays[ITEMS], &arrays[DROPPED],
                          &arrays[FIRST], &to.index.files[RECORDS], &to.index.files[PREFIXES], &to.width, &to.tail))
        return NULL;
    if (open_views(&to, arrays) == 0 && (made = make_room(&to)) != NULL && add_rows(&to) == 0)
        result = Py_BuildValue("(nnO)", to.room, to.n, made);
    Py_XDECREF(made);
    close_index(&to.index);
    for (int at = 0; at < VIEWS; at++) {
        if (to.held[at])
            PyBuffer_Release(&to.views[at]);
    }
    return result;
}
