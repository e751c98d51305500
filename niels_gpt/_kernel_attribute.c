/* The proof of the ids.
 *
 *   attribute  the ids of a layout -> tokens of each piece, tokens of each string, and for each string whether its ids
 *              are proven: they account for every byte, and the control tokens among them are exactly the expected ones
 *
 * Example. Two strings, of the pieces "<e>" "ab" and of the piece "<e>"; <e> is a control token of 3 bytes.
 *
 *     edges        0 3 5 | 8         where each piece starts, and the end
 *     expected     <e> at 0 and 5    control_at, control_ids
 *     ids          <e> a b <e>
 *     lengths      -3 1 1 -3         bytes that each id stands for; negative for control tokens
 *     starts       0 3 4 5           the bytes before each token
 *
 *     counts       1 2 | 1           tokens that start in each piece
 *     own          3 | 1             tokens of each string
 *     proven       1 | 1
 *
 * Had "ab" been one token of 2 bytes that the tokenizer merged with the next "<", its length 3 would reach beyond the
 * string's end at 5, and neither string would be proven.
 */

#include "_kernel.h"
#include <stdint.h>
#include <string.h>

/* Open the buffer of a contiguous array of one axis, of integers of `width` bytes in native byte order, or of a bytes
 * object that holds such integers. The caller releases `view` if the result is 0; -1 is an error, with nothing held.
 *
 * Ids may be unsigned: one above INT32_MAX is then read as a negative number, which is outside of every vocabulary. */
static int open_buffer(PyObject *array, Py_buffer *view, Py_ssize_t width, const char *name)
{
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT) < 0)
        return -1;
    const char *const format = view->format ? view->format : "B";
    const int whole = PyBytes_CheckExact(array) && view->len % width == 0;
    /* One letter: a format such as "<i" or "ii" names another byte order or structures. */
    const int integers = view->itemsize == width && format[0] && !format[1] && strchr("ilqILQ", format[0]) != NULL;
    if (view->ndim != 1 || !(whole || integers) || (uintptr_t)view->buf % (uintptr_t)width != 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be an aligned array of one axis of int%zd; found %d axes of items of %zd bytes, format %.20s",
                     name, 8 * width, view->ndim, view->itemsize, format);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

typedef struct {
    const int32_t *ids;
    Py_ssize_t tokens;
    const int32_t *lengths; /* bytes that each id stands for; negative for control tokens: minus the bytes */
    Py_ssize_t vocabulary;
    const int64_t *edges; /* pieces + 1 */
    const int64_t *pieces;
    Py_ssize_t strings;
    const int64_t *control_at;
    const int32_t *control_ids;
    Py_ssize_t controls;
    int64_t *counts; /* of each piece, zeros at first; out */
    int64_t *own;    /* of each string; out */
    char *proven;    /* of each string; out */
} Walk;

/* The bytes that an id stands for; 0 for an id outside of the vocabulary, or one whose bytes are unknown. */
static int64_t length_of(const Walk *w, int32_t id)
{
    return id >= 0 && id < w->vocabulary ? w->lengths[id] : 0;
}

/* One walk over the ids, piece by piece; fills `counts`, `own` and `proven`. Returns 1 if the ids account for every byte
 * of all strings, which `proven` presupposes. `check` has passed, so all indices are in range: `piece` < `last` < the
 * number of edges, and a token is read only while `token < tokens`. */
static int walk(Walk *w)
{
    int64_t byte = 0; /* where the next token starts */
    Py_ssize_t token = 0, piece = 0, control = 0;
    for (Py_ssize_t string = 0; string < w->strings; string++) {
        const Py_ssize_t last = piece + (Py_ssize_t)w->pieces[string], first = token;
        const int64_t end = w->edges[last];
        int good = byte == w->edges[piece]; /* no token of the string before reaches into this one */
        Py_ssize_t next_control = control;  /* the first expected control token of the strings after this one */
        while (next_control < w->controls && w->control_at[next_control] < end)
            next_control++;
        for (; piece < last; piece++) {
            const int64_t piece_end = w->edges[piece + 1]; /* an empty piece ends where it starts, and owns nothing */
            const Py_ssize_t first_of_piece = token;
            while (token < w->tokens && byte < piece_end) {
                const int32_t id = w->ids[token++];
                int64_t length = length_of(w, id);
                if (length <= 0) { /* a control token, which must be the next expected one, or an unknown id */
                    const int expected = control < next_control && w->control_at[control] == byte &&
                                         w->control_ids[control] == id && length != 0;
                    control += expected;
                    good = good && expected;
                    length = -length;
                }
                byte += length; /* cannot overflow: byte < end <= INT64_MAX / 2, and a length is at most 2^31 */
            }
            w->counts[piece] = token - first_of_piece;
        }
        w->own[string] = token - first;
        w->proven[string] = (char)(good && control == next_control && byte == end);
        control = next_control;
    }
    return token == w->tokens && byte == w->edges[piece];
}

/* Check what `walk` relies on: NULL, or what is wrong. `edges` and `control_ids` are the lengths of these arrays. */
static const char *check(const Walk *w, Py_ssize_t edges, Py_ssize_t control_ids)
{
    if (edges < 1 || w->edges[0] != 0)
        return "edges must begin with 0";
    for (Py_ssize_t at = 1; at < edges; at++) {
        if (w->edges[at] < w->edges[at - 1])
            return "edges must not descend";
    }
    const int64_t total = w->edges[edges - 1];
    if (total > INT64_MAX / 2) /* so that the last token may reach beyond the end without overflow */
        return "edges are too large";
    Py_ssize_t left = edges - 1;
    for (Py_ssize_t string = 0; string < w->strings; string++) {
        if (w->pieces[string] < 0 || w->pieces[string] > left)
            return "pieces must not be negative, nor more than there are edges for";
        left -= (Py_ssize_t)w->pieces[string];
    }
    if (left != 0)
        return "there must be one edge more than pieces";
    if (w->controls != control_ids)
        return "as many control_ids as control_at are needed";
    for (Py_ssize_t at = 0; at < w->controls; at++) {
        if (w->control_at[at] < (at ? w->control_at[at - 1] + 1 : 0) || w->control_at[at] >= total)
            return "control_at must ascend and lie before the last edge";
    }
    return NULL;
}

const char attribute_doc[] = "attribute(ids, lengths, edges, pieces, control_at, control_ids)\n--\n\n"
             "Prove the ids of many strings and count the tokens of each piece.\n\n"
             "See `niels_gpt.tokenizer.fast_path.attribute`, which returns the same as arrays.";

PyObject *make_attribution(PyObject *const *arguments)
{
    static const char *const names[ARRAYS] = {"ids", "lengths", "edges", "pieces", "control_at", "control_ids"};
    static const Py_ssize_t widths[ARRAYS] = {4, 4, 8, 8, 8, 4};
    PyObject *counts = NULL, *own = NULL, *proven = NULL, *result = NULL;
    Py_buffer views[ARRAYS];
    Py_ssize_t items[ARRAYS];
    int opened = 0; /* how many views must be released */
    for (; opened < ARRAYS; opened++) {
        if (open_buffer(arguments[opened], &views[opened], widths[opened], names[opened]) < 0)
            goto done;
        items[opened] = views[opened].len / widths[opened];
    }
    /* From here on no Python code runs, so what is checked stays true. The GIL is held; another thread could only write
     * to these arrays from native code that has released it, which is a race in the caller. */
    Walk w = {
        .ids = views[IDS].buf, .tokens = items[IDS],
        .lengths = views[LENGTHS].buf, .vocabulary = items[LENGTHS],
        .edges = views[EDGES].buf,
        .pieces = views[PIECES].buf, .strings = items[PIECES],
        .control_at = views[CONTROL_AT].buf, .control_ids = views[CONTROL_IDS].buf, .controls = items[CONTROL_AT],
    };
    const char *wrong = check(&w, items[EDGES], items[CONTROL_IDS]);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        goto done;
    }
    counts = bytes_of_size(items[EDGES] - 1, sizeof(int64_t));
    own = bytes_of_size(w.strings, sizeof(int64_t));
    proven = bytes_of_size(w.strings, 1);
    if (counts == NULL || own == NULL || proven == NULL)
        goto done;
    w.counts = (int64_t *)PyBytes_AsString(counts);
    w.own = (int64_t *)PyBytes_AsString(own);
    w.proven = PyBytes_AsString(proven);
    const int complete = walk(&w);
    if (!complete)
        memset(w.proven, 0, w.strings);
    const int all = complete && memchr(w.proven, 0, w.strings) == NULL;
    result = PyTuple_Pack(5, counts, own, proven, complete ? Py_True : Py_False, all ? Py_True : Py_False);
done:
    while (opened > 0)
        PyBuffer_Release(&views[--opened]);
    Py_XDECREF(counts);
    Py_XDECREF(own);
    Py_XDECREF(proven);
    return result;
}

PyObject *attribute(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *arrays[ARRAYS]; /* borrowed from `args` */
    if (!PyArg_ParseTuple(args, "OOOOOO:attribute", &arrays[IDS], &arrays[LENGTHS], &arrays[EDGES], &arrays[PIECES],
                          &arrays[CONTROL_AT], &arrays[CONTROL_IDS]))
        return NULL;
    return make_attribution(arrays);
}
