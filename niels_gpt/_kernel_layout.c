/* Texts laid end to end before they are encoded.
 *
 *   layout     texts and facts of many renderings -> one run of UTF-8, where each piece starts, which control tokens
 *              the scaffold holds and at which byte
 */

#include "_kernel.h"
#include <stdint.h>
#include <string.h>

#define SCAFFOLD 4 /* the bit of a piece's fact that says: control tokens in this text are control tokens */

/* How a string's characters bear on Unicode normalisation, worst character first. */
enum { ASCII_ONLY = 0, SAFE_IN_NFC = 1, MAY_CHANGE = 2 };

/* ------------------------------------------------------------------ texts */

/* Ranges in which no character changes under NFC, combines with the one before it, or is reordered. Checked character
 * by character against `unicodedata` in tests/tokenizer/test_layout.py. */
static const uint32_t SAFE[][2] = {
    {0x0000, 0x02FF},   {0x038E, 0x03A1},   {0x03A3, 0x0482},   {0x048A, 0x052F},   {0x0531, 0x0556},
    {0x05D0, 0x05EA},   {0x0620, 0x064A},   {0x0660, 0x066F},   {0x0671, 0x06D5},   {0x06EE, 0x06FF},
    {0x0904, 0x093B},   {0x093D, 0x094C},   {0x0960, 0x097F},   {0x10D0, 0x10FF},   {0x1E00, 0x1F15},
    {0x2002, 0x2064},   {0x2074, 0x208E},   {0x20A0, 0x20C0},   {0x2100, 0x2125},   {0x212C, 0x218B},
    {0x2190, 0x2328},   {0x232B, 0x2426},   {0x2460, 0x2ADB},   {0x2ADD, 0x2B73},   {0x3000, 0x3029},
    {0x3041, 0x3096},   {0x309B, 0x30FF},   {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3},   {0xFE00, 0xFE0F},
    {0xFF01, 0xFFBE},   {0x1F1E6, 0x1F1FF}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6D7}, {0x1F900, 0x1F9FF},
};

static int is_safe(uint32_t point)
{
    size_t low = 0, high = sizeof(SAFE) / sizeof(SAFE[0]); /* the range that may hold it is low, or before high */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (point > SAFE[middle][1])
            low = middle + 1;
        else if (point >= SAFE[middle][0])
            return 1;
        else
            high = middle;
    }
    return 0;
}

/* What the characters of valid UTF-8 are. */
static int kind_of(const unsigned char *text, Py_ssize_t size)
{
    int kind = ASCII_ONLY;
    Py_ssize_t at = 0;
    while (at < size) {
        if (size - at >= 8) {
            uint64_t eight;
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        unsigned char first = text[at];
        if (first < 0x80) {
            at++;
            continue;
        }
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1; /* bytes after the first */
        if (at + more >= size)
            return MAY_CHANGE; /* cannot happen in valid UTF-8 */
        uint32_t point = first & (0x3F >> more);
        for (int k = 1; k <= more; k++)
            point = point << 6 | (text[at + k] & 0x3F);
        if (!is_safe(point))
            return MAY_CHANGE;
        kind = SAFE_IN_NFC;
        at += more + 1;
    }
    return kind;
}

/* ------------------------------------------------------------------ layout */

typedef struct {
    PyObject *text;  /* owned */
    PyObject *frame; /* owned; the control tokens of a scaffold text as pairs (byte, id) of int32, or NULL */
    const char *utf8;
    Py_ssize_t size;
    int32_t fact;
} Piece;

static void release(Piece *pieces, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        Py_XDECREF(pieces[at].text);
        Py_XDECREF(pieces[at].frame);
    }
    PyMem_Free(pieces);
}

/* The list at an index of a list; a borrowed reference, or NULL with an error set. */
static PyObject *list_at(PyObject *lists, Py_ssize_t index, const char *what)
{
    PyObject *found = PyList_GetItem(lists, index);
    if (found == NULL)
        return NULL;
    if (!PyList_Check(found)) {
        PyErr_Format(PyExc_TypeError, "%s[%zd] must be a list", what, index);
        return NULL;
    }
    return found;
}

/* Take one piece: its own references, its bytes, its fact, and where it is scaffold its control tokens.
 * `text` and `fact` are borrowed from lists, so no Python code may run before `text` is owned and `fact` is read. */
static int take(Piece *piece, PyObject *text, PyObject *fact, PyObject *frames)
{
    if (!PyUnicode_Check(text)) {
        PyErr_SetString(PyExc_TypeError, "a text must be a str");
        return -1;
    }
    if (!PyLong_Check(fact)) { /* an `__index__` would run Python code */
        PyErr_SetString(PyExc_TypeError, "a fact must be an int");
        return -1;
    }
    long bits = PyLong_AsLong(fact);
    if (bits == -1 && PyErr_Occurred())
        return -1;
    if (bits < INT32_MIN || bits > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a fact must fit into int32");
        return -1;
    }
    Py_INCREF(text);
    piece->text = text;
    piece->fact = (int32_t)bits;
    piece->utf8 = PyUnicode_AsUTF8AndSize(text, &piece->size); /* stays valid as long as the text does */
    if (piece->utf8 == NULL)
        return -1;
    if (bits & SCAFFOLD) {
        piece->frame = PyObject_GetItem(frames, text); /* looked up, or found out and remembered, by Python */
        if (piece->frame == NULL)
            return -1;
        if (!PyBytes_Check(piece->frame) || PyBytes_Size(piece->frame) % 8) {
            PyErr_SetString(PyExc_TypeError, "a frame must be bytes of int32 pairs");
            return -1;
        }
    }
    return 0;
}

/* All pieces of all strings, with the number of pieces of each string; NULL with an error set. */
static Piece *take_all(PyObject *texts, PyObject *facts, PyObject *frames, int64_t *counts, Py_ssize_t strings,
                       Py_ssize_t *found)
{
    Py_ssize_t room = 64, used = 0;
    Piece *pieces = PyMem_Calloc(room, sizeof(Piece));
    if (pieces == NULL)
        return (Piece *)PyErr_NoMemory();
    for (Py_ssize_t string = 0; string < strings; string++) {
        /* Looking up a frame may run Python code, so the lists are measured again at every step. */
        PyObject *own = list_at(texts, string, "texts"), *bits = own ? list_at(facts, string, "facts") : NULL;
        if (bits == NULL)
            goto failed;
        Py_INCREF(own);
        Py_INCREF(bits);
        Py_ssize_t first = used;
        int failed = 0;
        for (Py_ssize_t at = 0; !failed && at < PyList_Size(own) && at < PyList_Size(bits); at++) {
            if (used == room) {
                Piece *larger = PyMem_Realloc(pieces, 2 * room * sizeof(Piece));
                if (larger == NULL) {
                    PyErr_NoMemory();
                    failed = 1;
                    break;
                }
                pieces = larger;
                memset(pieces + room, 0, room * sizeof(Piece));
                room *= 2;
            }
            PyObject *text = PyList_GetItem(own, at), *fact = text ? PyList_GetItem(bits, at) : NULL;
            failed = fact == NULL;
            if (!failed) {
                used++; /* before `take`, so that what it has taken is released if it fails */
                failed = take(&pieces[used - 1], text, fact, frames) < 0;
            }
        }
        if (!failed && PyList_Size(own) != PyList_Size(bits)) {
            PyErr_SetString(PyExc_ValueError, "as many facts as texts are needed");
            failed = 1;
        }
        Py_DECREF(own);
        Py_DECREF(bits);
        if (failed)
            goto failed;
        counts[string] = used - first;
    }
    *found = used;
    return pieces;
failed:
    release(pieces, used);
    return NULL;
}

/* What `layout` returns. `worst` becomes the worst kind of a string, `led` whether every string that is not empty begins
 * with a control token. */
PyObject *laid_out(PyObject *texts, PyObject *facts, PyObject *frames, int *worst, int *led)
{
    PyObject *data = NULL, *edges = NULL, *bits = NULL, *counts = NULL, *at = NULL, *ids = NULL, *kinds = NULL;
    PyObject *result = NULL;
    Py_ssize_t strings = PyList_Size(texts), count = 0;
    if (PyList_Size(facts) != strings) {
        PyErr_SetString(PyExc_ValueError, "as many lists of facts as of texts are needed");
        return NULL;
    }
    counts = bytes_of_size(strings, sizeof(int64_t));
    kinds = bytes_of_size(strings, 1);
    if (counts == NULL || kinds == NULL) {
        Py_XDECREF(counts);
        Py_XDECREF(kinds);
        return NULL;
    }
    int64_t *counted = (int64_t *)PyBytes_AsString(counts);
    Piece *pieces = take_all(texts, facts, frames, counted, strings, &count);
    if (pieces == NULL) {
        Py_DECREF(counts);
        Py_DECREF(kinds);
        return NULL;
    }
    /* From here on no Python code runs. */
    Py_ssize_t total = 0, controls = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        if (pieces[k].size > PY_SSIZE_T_MAX - total) {
            PyErr_NoMemory();
            goto done;
        }
        total += pieces[k].size;
        controls += pieces[k].frame ? PyBytes_Size(pieces[k].frame) / 8 : 0;
    }
    data = bytes_of_size(total, 1);
    edges = bytes_of_size(count + 1, sizeof(int64_t));
    bits = bytes_of_size(count, sizeof(int32_t));
    at = bytes_of_size(controls, sizeof(int64_t));
    ids = bytes_of_size(controls, sizeof(int32_t));
    if (data == NULL || edges == NULL || bits == NULL || at == NULL || ids == NULL)
        goto done;
    char *out = PyBytes_AsString(data);
    int64_t *edge = (int64_t *)PyBytes_AsString(edges), *position = (int64_t *)PyBytes_AsString(at);
    int32_t *fact = (int32_t *)PyBytes_AsString(bits), *id = (int32_t *)PyBytes_AsString(ids);
    char *kind = PyBytes_AsString(kinds);
    Py_ssize_t k = 0, byte = 0;
    *worst = ASCII_ONLY;
    *led = 1;
    for (Py_ssize_t string = 0; string < strings; string++) {
        const Py_ssize_t start = byte;
        const int64_t *const first = position; /* its first control token, if it has one */
        for (Py_ssize_t stop = k + (Py_ssize_t)counted[string]; k < stop; k++) {
            edge[k] = byte;
            fact[k] = pieces[k].fact;
            memcpy(out + byte, pieces[k].utf8, pieces[k].size);
            if (pieces[k].frame) {
                const char *pairs = PyBytes_AsString(pieces[k].frame);
                for (Py_ssize_t pair = PyBytes_Size(pieces[k].frame) / 8; pair > 0; pair--, pairs += 8) {
                    int32_t both[2];
                    memcpy(both, pairs, 8);
                    *position++ = byte + both[0];
                    *id++ = both[1];
                }
            }
            byte += pieces[k].size;
        }
        const int found = kind_of((const unsigned char *)out + start, byte - start);
        kind[string] = (char)found;
        *worst = found > *worst ? found : *worst;
        *led = *led && (byte == start || (position > first && *first == start));
    }
    edge[count] = byte;
    result = PyTuple_Pack(7, data, edges, bits, counts, at, ids, kinds);
done:
    release(pieces, count);
    Py_XDECREF(data);
    Py_XDECREF(edges);
    Py_XDECREF(bits);
    Py_XDECREF(counts);
    Py_XDECREF(at);
    Py_XDECREF(ids);
    Py_XDECREF(kinds);
    return result;
}

const char layout_doc[] = "layout(texts, facts, frames)\n--\n\n"
             "Lay the pieces of many strings end to end.\n\n"
             "See `niels_gpt.tokenizer.layout.layout`, which returns the same as arrays.";

PyObject *layout(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *texts, *facts, *frames;
    int worst, led;
    if (!PyArg_ParseTuple(args, "O!O!O:layout", &PyList_Type, &texts, &PyList_Type, &facts, &frames))
        return NULL;
    return laid_out(texts, facts, frames, &worst, &led);
}
