/* Reading conversations: copies of messages that need no repair, and JSON.
 *
 *   copied       messages -> copies of those made of plain texts and calls, None for those that need a closer look
 *   plain_roles  the roles of messages that need neither repair nor further checks, or None
 *   json_text    plain data -> JSON as `json.dumps(..., ensure_ascii=False)` writes it, or None
 *   is_json      whether a text is certainly JSON
 *
 * All four know the common cases only. Where they do not, Python decides (`niels_gpt/messages.py`,
 * `niels_gpt/renderers/chat.py`), so what is odd is written once, in Python.
 *
 * A collection of garbage may run any Python code, also while a container is made here. So a container is copied first
 * and the copy, which nobody else holds, is checked; borrowed references are used where nothing is made in between.
 */

#include "_kernel.h"
#include <stdio.h>
#include <string.h>

#define DEEPEST 64 /* levels of JSON; deeper values are left to Python, which raises RecursionError in time */

/* ------------------------------------------------------------------ texts */

/* A `str` without half of a surrogate pair. Python keeps its UTF-8 for `layout`. Runs no Python code. */
static int is_text(PyObject *value)
{
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(value))
        return 0;
    if (PyUnicode_AsUTF8AndSize(value, &size) == NULL) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

static int spells(PyObject *key, const char *text)
{
    return PyUnicode_CompareWithASCIIString(key, text) == 0;
}

/* ------------------------------------------------------------------ copied */

/* Whether arguments are an object of texts, numbers and truth values. */
static int has_plain_arguments(PyObject *arguments)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(arguments, &at, &key, &value)) {
        const int number = PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value);
        if (!is_text(key) || !(number || is_text(value)))
            return 0;
    }
    return 1;
}

/* Put a copy of the dictionary that a dictionary holds in its place: 1, 0 if it holds none there, -1 for an error. */
static int copy_inner(PyObject *outer, const char *name, PyObject **copy)
{
    PyObject *held = PyDict_GetItemString(outer, name); /* borrowed; all keys are known to be `str` */
    if (held == NULL || !PyDict_CheckExact(held))
        return 0;
    *copy = PyDict_Copy(held);
    if (*copy == NULL)
        return -1;
    const int failed = PyDict_SetItemString(outer, name, *copy);
    Py_DECREF(*copy); /* `outer` holds it */
    return failed ? -1 : 1;
}

static int has_keys_of_text(PyObject *given)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(given, &at, &key, &value)) {
        if (!PyUnicode_CheckExact(key))
            return 0;
    }
    return 1;
}

/* Whether a copy of a function is {"name": text, "arguments": text or object}; arguments are copied, too. */
static int take_function(PyObject *function)
{
    if (PyDict_Size(function) != 2 || !has_keys_of_text(function))
        return 0;
    PyObject *name = PyDict_GetItemString(function, "name"), *arguments = PyDict_GetItemString(function, "arguments");
    if (name == NULL || arguments == NULL || !is_text(name))
        return 0;
    if (is_text(arguments))
        return 1;
    const int found = copy_inner(function, "arguments", &arguments);
    return found == 1 ? has_plain_arguments(arguments) : found;
}

/* Whether a copy of a call is {"function": ..., "id": text, "type": text}; what it holds is copied, too. */
static int take_call(PyObject *call)
{
    PyObject *key, *value, *function;
    Py_ssize_t at = 0;
    if (!has_keys_of_text(call))
        return 0;
    const int found = copy_inner(call, "function", &function);
    if (found != 1)
        return found;
    while (PyDict_Next(call, &at, &key, &value)) {
        if (!spells(key, "function") && !((spells(key, "id") || spells(key, "type")) && is_text(value)))
            return 0;
    }
    return take_function(function);
}

/* A copy of a list of calls; NULL without an error where one of them needs a closer look. */
static PyObject *copy_of_calls(PyObject *calls)
{
    PyObject *made = PyList_GetSlice(calls, 0, PyList_Size(calls));
    if (made == NULL)
        return NULL;
    for (Py_ssize_t at = 0; at < PyList_Size(made); at++) {
        PyObject *call = PyList_GetItem(made, at);
        if (call == NULL || !PyDict_CheckExact(call))
            goto odd;
        call = PyDict_Copy(call);
        if (call == NULL)
            goto odd;
        const int found = take_call(call);
        if (PyList_SetItem(made, at, call) < 0 || found != 1) /* takes the reference */
            goto odd;
    }
    return made;
odd:
    Py_DECREF(made);
    return NULL;
}

enum { ODD, TEXT, CALLS, TRAIN, WEIGHT };

/* What a key of a message holds where it is as it should be. */
static int kind_of_field(PyObject *key)
{
    switch (PyUnicode_CheckExact(key) ? PyUnicode_GetLength(key) : 0) {
    case 4:
        return spells(key, "role") || spells(key, "name") ? TEXT : ODD;
    case 5:
        return spells(key, "train") ? TRAIN : ODD;
    case 6:
        return spells(key, "weight") ? WEIGHT : ODD;
    case 7:
        return spells(key, "content") ? TEXT : ODD;
    case 10:
        return spells(key, "tool_calls") ? CALLS : ODD;
    case 12:
        return spells(key, "tool_call_id") ? TEXT : ODD;
    case 17:
        return spells(key, "reasoning_content") ? TEXT : ODD;
    default:
        return ODD;
    }
}

/* A copy of a message; NULL, with or without an error, where it needs a closer look. */
static PyObject *copy_of_message(PyObject *message)
{
    PyObject *key, *value, *calls = NULL;
    Py_ssize_t at = 0;
    PyObject *made = PyDict_CheckExact(message) ? PyDict_Copy(message) : NULL;
    if (made == NULL)
        return NULL;
    while (PyDict_Next(made, &at, &key, &value)) {
        const int kind = kind_of_field(key);
        if (kind == CALLS && PyList_CheckExact(value))
            calls = value;
        else if (!(kind == TEXT && is_text(value)) && !(kind == TRAIN && PyBool_Check(value)) &&
                 !(kind == WEIGHT && PyFloat_CheckExact(value)))
            goto odd;
    }
    if (PyDict_GetItemString(made, "role") == NULL || PyDict_GetItemString(made, "content") == NULL)
        goto odd;
    if (calls != NULL) { /* `made` holds it */
        calls = copy_of_calls(calls);
        if (calls == NULL || PyDict_SetItemString(made, "tool_calls", calls) < 0) {
            Py_XDECREF(calls);
            goto odd;
        }
        Py_DECREF(calls);
    }
    return made;
odd:
    Py_DECREF(made);
    return NULL;
}

const char copied_doc[] = "copied(messages)\n--\n\n"
                          "Copies of the messages of a list, None for each that is not made of texts and calls alone.\n\n"
                          "See `niels_gpt.messages.normalise`.";

PyObject *copied(PyObject *Py_UNUSED(module), PyObject *messages)
{
    if (!PyList_CheckExact(messages)) {
        PyErr_SetString(PyExc_TypeError, "messages must be a list");
        return NULL;
    }
    PyObject *made = PyList_GetSlice(messages, 0, PyList_Size(messages));
    if (made == NULL)
        return NULL;
    for (Py_ssize_t at = 0; at < PyList_Size(made); at++) {
        PyObject *message = PyList_GetItem(made, at), *copy = message ? copy_of_message(message) : NULL;
        if (copy == NULL) {
            if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
                goto failed; /* an interrupt */
            PyErr_Clear();
            copy = Py_None;
            Py_INCREF(copy);
        }
        if (PyList_SetItem(made, at, copy) < 0) /* takes the reference */
            goto failed;
    }
    return made;
failed:
    Py_DECREF(made);
    return NULL;
}

/* ------------------------------------------------------------------ plain_roles */

static int is_one_of(PyObject *role, PyObject *allowed)
{
    for (Py_ssize_t at = 0; at < PyTuple_Size(allowed); at++) {
        PyObject *one = PyTuple_GetItem(allowed, at);
        if (one == role || (PyUnicode_CheckExact(one) && PyUnicode_Compare(one, role) == 0))
            return 1;
    }
    return 0;
}

/* The role of a message that is made of texts alone and is not a tool's; borrowed, or NULL. Runs no Python code. */
static PyObject *plain_role(PyObject *message, PyObject *allowed)
{
    PyObject *key, *value, *role = NULL;
    Py_ssize_t at = 0;
    int content = 0;
    if (!PyDict_CheckExact(message))
        return NULL;
    while (PyDict_Next(message, &at, &key, &value)) {
        if (kind_of_field(key) != TEXT || !is_text(value))
            return NULL;
        if (spells(key, "role"))
            role = value;
        content |= spells(key, "content");
    }
    return role != NULL && content && !spells(role, "tool") && is_one_of(role, allowed) ? role : NULL;
}

const char plain_roles_doc[] = "plain_roles(messages, allowed)\n--\n\n"
                               "The roles of messages that need neither repair nor further checks; None for others.\n\n"
                               "See `niels_gpt.renderers.chat.Chat`.";

PyObject *plain_roles(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *messages, *allowed;
    if (!PyArg_ParseTuple(args, "O!O!:plain_roles", &PyList_Type, &messages, &PyTuple_Type, &allowed))
        return NULL;
    if (PyList_Size(messages) == 0)
        Py_RETURN_NONE;
    PyObject *roles = PyList_GetSlice(messages, 0, PyList_Size(messages));
    for (Py_ssize_t at = 0; roles != NULL && at < PyList_Size(roles); at++) {
        PyObject *role = plain_role(PyList_GetItem(roles, at), allowed);
        if (role == NULL) {
            Py_DECREF(roles);
            Py_RETURN_NONE;
        }
        Py_INCREF(role);
        if (PyList_SetItem(roles, at, role) < 0) { /* takes the reference, and lets go of the message */
            Py_DECREF(roles);
            return NULL;
        }
    }
    return roles;
}

/* ------------------------------------------------------------------ json_text */

typedef struct {
    char *data;
    Py_ssize_t used, room;
} Buffer;

/* Nothing below runs Python code or makes a container, so borrowed references hold. 1 is done, 0 is "Python must". */

static int put(Buffer *out, const char *text, Py_ssize_t size)
{
    if (size > out->room - out->used) {
        if (size > PY_SSIZE_T_MAX / 4 || out->room > PY_SSIZE_T_MAX / 4)
            return 0;
        const Py_ssize_t room = 2 * out->room + size;
        char *larger = PyMem_Realloc(out->data, room);
        if (larger == NULL)
            return 0;
        out->data = larger;
        out->room = room;
    }
    memcpy(out->data + out->used, text, size);
    out->used += size;
    return 1;
}

static int put_text(Buffer *out, PyObject *text)
{
    static const char short_escapes[] = "\bb\ff\nn\rr\tt\"\"\\\\"; /* a character, and its letter behind the backslash */
    Py_ssize_t size, done = 0;
    const char *utf8 = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (utf8 == NULL || !put(out, "\"", 1))
        return 0;
    for (Py_ssize_t at = 0; at < size; at++) {
        const unsigned char byte = (unsigned char)utf8[at];
        if (byte >= 0x20 && byte != '"' && byte != '\\')
            continue;
        char escape[8];
        const char *letter = short_escapes;
        while (*letter && (unsigned char)*letter != byte)
            letter += 2;
        if (byte && *letter)
            snprintf(escape, sizeof(escape), "\\%c", letter[1]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", byte);
        if (!put(out, utf8 + done, at - done) || !put(out, escape, (Py_ssize_t)strlen(escape)))
            return 0;
        done = at + 1;
    }
    return put(out, utf8 + done, size - done) && put(out, "\"", 1);
}

static int put_number(Buffer *out, PyObject *value)
{
    char digits[32];
    int overflow = 0;
    if (PyFloat_CheckExact(value)) {
        const double number = PyFloat_AsDouble(value);
        if (number - number != 0.0) /* infinite, or not a number */
            return 0;
        char *shown = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        const int done = shown != NULL && put(out, shown, (Py_ssize_t)strlen(shown));
        PyMem_Free(shown);
        return done;
    }
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow)
        return 0;
    snprintf(digits, sizeof(digits), "%lld", number);
    return put(out, digits, (Py_ssize_t)strlen(digits));
}

static int put_value(Buffer *out, PyObject *value, int depth)
{
    if (PyUnicode_CheckExact(value))
        return put_text(out, value);
    if (value == Py_None)
        return put(out, "null", 4);
    if (PyBool_Check(value))
        return value == Py_True ? put(out, "true", 4) : put(out, "false", 5);
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value))
        return put_number(out, value);
    if (depth == DEEPEST)
        return 0;
    if (PyList_CheckExact(value)) {
        if (!put(out, "[", 1))
            return 0;
        for (Py_ssize_t at = 0; at < PyList_Size(value); at++) {
            PyObject *held = PyList_GetItem(value, at);
            if (held == NULL || (at && !put(out, ", ", 2)) || !put_value(out, held, depth + 1))
                return 0;
        }
        return put(out, "]", 1);
    }
    if (!PyDict_CheckExact(value) || !put(out, "{", 1))
        return 0;
    PyObject *key, *held;
    for (Py_ssize_t at = 0, first = 1; PyDict_Next(value, &at, &key, &held); first = 0) {
        if ((!first && !put(out, ", ", 2)) || !put_text(out, key) || !put(out, ": ", 2) ||
            !put_value(out, held, depth + 1))
            return 0;
    }
    return put(out, "}", 1);
}

const char json_text_doc[] = "json_text(value)\n--\n\n"
                             "JSON of plain data, not escaped, in the order given; None where Python must write it.\n\n"
                             "See `niels_gpt.renderers.chat.to_json`.";

PyObject *json_text(PyObject *Py_UNUSED(module), PyObject *value)
{
    Buffer out = {PyMem_Malloc(1024), 0, 1024};
    if (out.data == NULL)
        return PyErr_NoMemory();
    const int done = put_value(&out, value, 0);
    PyObject *text;
    if (done)
        text = PyUnicode_DecodeUTF8(out.data, out.used, "strict");
    else {
        PyErr_Clear(); /* a lone surrogate, or no memory */
        text = Py_None;
        Py_INCREF(text);
    }
    PyMem_Free(out.data);
    return text;
}

/* ------------------------------------------------------------------ is_json */

typedef struct {
    const char *at, *end; /* what is left to read */
} Reader;

static void skip_space(Reader *in)
{
    while (in->at < in->end && strchr(" \t\n\r", *in->at) != NULL && *in->at)
        in->at++;
}

static int took(Reader *in, char wanted)
{
    if (in->at == in->end || *in->at != wanted)
        return 0;
    in->at++;
    return 1;
}

static int read_digits(Reader *in)
{
    const char *first = in->at;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9')
        in->at++;
    return in->at > first && in->at - first < 4000; /* Python refuses to read longer integers */
}

static int read_number(Reader *in)
{
    took(in, '-');
    if (!took(in, '0') && !read_digits(in))
        return 0;
    if (took(in, '.') && !read_digits(in))
        return 0;
    if (in->at < in->end && (*in->at == 'e' || *in->at == 'E')) {
        in->at++;
        if (!took(in, '+'))
            took(in, '-');
        return read_digits(in);
    }
    return 1;
}

/* A text behind its opening quote. An escape \u is left to Python, since it may spell half of a surrogate pair. */
static int read_text(Reader *in)
{
    while (in->at < in->end) {
        const unsigned char byte = (unsigned char)*in->at++;
        if (byte == '"')
            return 1;
        if (byte < 0x20)
            return 0;
        if (byte == '\\') {
            if (in->at == in->end || *in->at == 0 || strchr("\"\\/bfnrt", *in->at) == NULL)
                return 0;
            in->at++;
        }
    }
    return 0;
}

static int read_word(Reader *in, const char *word)
{
    for (; *word; word++) {
        if (!took(in, *word))
            return 0;
    }
    return 1;
}

static int read_value(Reader *in, int depth)
{
    skip_space(in);
    if (in->at == in->end || depth > DEEPEST)
        return 0;
    switch (*in->at) {
    case '"':
        in->at++;
        return read_text(in);
    case 't':
        return read_word(in, "true");
    case 'f':
        return read_word(in, "false");
    case 'n':
        return read_word(in, "null");
    case '[':
    case '{':
        break;
    default:
        return read_number(in);
    }
    const int object = *in->at++ == '{';
    const char close = object ? '}' : ']';
    skip_space(in);
    if (took(in, close))
        return 1;
    do {
        if (object) {
            skip_space(in);
            if (!took(in, '"') || !read_text(in))
                return 0;
            skip_space(in);
            if (!took(in, ':'))
                return 0;
        }
        if (!read_value(in, depth + 1))
            return 0;
        skip_space(in);
    } while (took(in, ','));
    return took(in, close);
}

const char is_json_doc[] = "is_json(text)\n--\n\n"
                           "True: the text is JSON without escapes \\u. False: let Python read it.\n\n"
                           "See `niels_gpt.renderers.chat.Call.json`.";

PyObject *is_json(PyObject *Py_UNUSED(module), PyObject *text)
{
    Py_ssize_t size;
    const char *utf8 = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (utf8 == NULL) {
        PyErr_Clear();
        return PyBool_FromLong(0);
    }
    Reader in = {utf8, utf8 + size};
    int good = read_value(&in, 0);
    skip_space(&in);
    return PyBool_FromLong(good && in.at == in.end);
}
