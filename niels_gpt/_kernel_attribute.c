/* The proof of the ids.
 *
 *   attribute  the ids of a layout -> tokens of each piece, tokens of each string, and for each string whether its ids
 *              are proven: every byte is accounted for and exactly the expected control tokens stand at their bytes
 */

#include "_kernel.h"
#include <stdint.h>
#include <string.h>

/* A contiguous array of one axis, of integers of `width` bytes in the machine's own order, or the bytes of one. Ids may
 * be unsigned; one above INT32_MAX is then read as a negative number, which is outside of every vocabulary. */
static int buffer(PyObject *given, Py_buffer *view, Py_ssize_t width, const char *name)
{
    if (PyObject_GetBuffer(given, view, PyBUF_ND | PyBUF_FORMAT) < 0)
        return -1;
    const char *const format = view->format ? view->format : "B";
    const int whole = PyBytes_CheckExact(given) && view->len % width == 0;
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
    int64_t *counts; /* of each piece, zeros at first */
    int64_t *own;    /* of each string */
    char *proven;    /* of each string */
} Walk;

/* One walk over the ids. Returns 1 if they account for every byte of all strings.
 *
 *     pieces     "<e>" "ab" | "<e>"       edges  0 3 5 8      expected  <e> at 0 and 5
 *     ids        <e> a b <e>              lengths  3 1 1 3    bytes before each  0 3 4 5
 *     counts     1 2 | 1                  own  3 | 1          proven  1 | 1
 */
static int walk(Walk *w)
{
    int64_t byte = 0;
    Py_ssize_t token = 0, piece = 0, control = 0;
    for (Py_ssize_t string = 0; string < w->strings; string++) {
        const Py_ssize_t last = piece + (Py_ssize_t)w->pieces[string], first = token;
        const int64_t end = w->edges[last];
        int good = byte == w->edges[piece]; /* no token of the string before reaches into this one */
        Py_ssize_t behind = control;        /* the first control token of the strings after this one */
        while (behind < w->controls && w->control_at[behind] < end)
            behind++;
        while (token < w->tokens && byte < end && piece < last) {
            const int32_t id = w->ids[token++];
            int64_t length = id >= 0 && id < w->vocabulary ? w->lengths[id] : 0;
            while (piece + 1 < last && w->edges[piece + 1] <= byte)
                piece++;
            w->counts[piece]++;
            if (length < 0) { /* a control token */
                length = -length;
                if (control < behind && w->control_at[control] == byte && w->control_ids[control] == id)
                    control++;
                else
                    good = 0;
            } else if (length == 0) /* an id outside of the vocabulary, or one that stands for no text */
                good = 0;
            byte += length;
        }
        w->own[string] = token - first;
        w->proven[string] = (char)(good && control == behind && byte == end);
        control = behind;
        piece = last;
    }
    return token == w->tokens && byte == w->edges[piece];
}

/* What `walk` relies on, or a word about what is wrong. */
static const char *fault(const Walk *w, Py_ssize_t edges, Py_ssize_t control_ids)
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
             "See `niels_gpt.tokenizer.layout.attribute`, which returns the same as arrays.";

/* What `attribute` returns for its six arguments. */
PyObject *attributed(PyObject *const *given)
{
    static const char *const names[ARRAYS] = {"ids", "lengths", "edges", "pieces", "control_at", "control_ids"};
    static const Py_ssize_t widths[ARRAYS] = {4, 4, 8, 8, 8, 4};
    PyObject *counts = NULL, *own = NULL, *proven = NULL, *result = NULL;
    Py_buffer views[ARRAYS];
    Py_ssize_t items[ARRAYS];
    int held = 0;
    for (; held < ARRAYS; held++) {
        if (buffer(given[held], &views[held], widths[held], names[held]) < 0)
            goto done;
        items[held] = views[held].len / widths[held];
    }
    /* From here on no Python code runs, so what is checked stays true (another thread must not write meanwhile). */
    Walk w = {
        .ids = views[IDS].buf, .tokens = items[IDS],
        .lengths = views[LENGTHS].buf, .vocabulary = items[LENGTHS],
        .edges = views[EDGES].buf,
        .pieces = views[PIECES].buf, .strings = items[PIECES],
        .control_at = views[AT].buf, .control_ids = views[CONTROLS].buf, .controls = items[AT],
    };
    const char *wrong = fault(&w, items[EDGES], items[CONTROLS]);
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
    memset(w.counts, 0, PyBytes_Size(counts));
    const int complete = walk(&w);
    if (!complete)
        memset(w.proven, 0, w.strings);
    const int all = complete && memchr(w.proven, 0, w.strings) == NULL;
    result = PyTuple_Pack(5, counts, own, proven, complete ? Py_True : Py_False, all ? Py_True : Py_False);
done:
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    Py_XDECREF(counts);
    Py_XDECREF(own);
    Py_XDECREF(proven);
    return result;
}

PyObject *attribute(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[ARRAYS];
    if (!PyArg_ParseTuple(args, "OOOOOO:attribute", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5]))
        return NULL;
    return attributed(given);
}
