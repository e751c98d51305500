/* Reading conversations: copies of messages that need no repair, and roles.
 *
 *   copied       messages -> copies of those made of plain texts and calls, None for those that need a closer look
 *   plain_roles  the roles of messages that need neither repair nor further checks, or None
 *
 * Both know the common cases only. Where they do not, Python decides (`niels_gpt/messages.py`,
 * `niels_gpt/renderers/chat.py`), so what is odd is written once, in Python.
 *
 * A collection of garbage may run any Python code, also while a container is made here. So a container is copied first
 * and the copy, which nobody else holds, is checked; borrowed references are used where nothing is made in between.
 */

#include "_kernel.h"

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
