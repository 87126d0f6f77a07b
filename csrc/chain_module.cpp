// gpukey._chain: token ids and block keys of text for processes without torch (routers). Python's limited API of 3.10.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "block_keys.h"

namespace {

struct Decref {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Decref>;

// The name of an object's type, or null with an error: a metaclass may give anything in its place.
Owned type_name(PyObject* object) {
  Owned name(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
  if (!name || PyUnicode_Check(name.get())) return name;
  return Owned(PyObject_Repr(name.get()));
}

// A wrong id: TypeError or ValueError that names its index. Always false.
bool refuse(PyObject* kind, Py_ssize_t index, PyObject* item) {
  if (kind == PyExc_TypeError) {
    const Owned name = type_name(item);
    if (name) PyErr_Format(kind, "token_ids[%zd] is a %U; an integer in 0 <= id < 2**63 is needed", index, name.get());
  } else {
    PyErr_Format(kind, "token_ids[%zd] is %S; an integer in 0 <= id < 2**63 is needed", index, item);
  }
  return false;
}

bool read_int(PyObject* number, Py_ssize_t index, int64_t& id) {
  int overflow = 0;
  id = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (id == -1 && overflow == 0 && PyErr_Occurred()) return false;
  return id >= 0 && overflow == 0 ? true : refuse(PyExc_ValueError, index, number);
}

// An array or a tensor of one boolean has an index too.
bool holds_booleans(PyObject* item) {
  const Owned dtype(PyObject_GetAttrString(item, "dtype"));
  const Owned text(dtype ? PyObject_Str(dtype.get()) : nullptr);
  const Owned found(text ? PyObject_CallMethod(text.get(), "count", "s", "bool") : nullptr);
  PyErr_Clear();
  return found && PyObject_IsTrue(found.get()) == 1;
}

bool read_id(PyObject* item, Py_ssize_t index, int64_t& id) {
  if (Py_TYPE(item) == &PyLong_Type) return read_int(item, index, id);
  const char* const kBooleans[] = {"bool", "bool_"};  // numpy's count too
  const Owned name = type_name(item);
  if (!name) return false;
  bool boolean = PyBool_Check(item);
  for (const char* known : kBooleans) boolean = boolean || PyUnicode_CompareWithASCIIString(name.get(), known) == 0;
  if (boolean || !PyIndex_Check(item) || holds_booleans(item)) return refuse(PyExc_TypeError, index, item);
  const Owned number(PyNumber_Index(item));
  return number && read_int(number.get(), index, id);
}

// Items of a list or tuple, which cannot shrink below us: reading an id of a foreign type may run Python code.
bool read_sequence(PyObject* sequence, std::vector<int64_t>& ids) {
  const bool is_list = PyList_Check(sequence);
  const Py_ssize_t size = is_list ? PyList_Size(sequence) : PyTuple_Size(sequence);
  ids.resize(size);
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* item = is_list ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i);
    if (item == nullptr) return false;
    Py_INCREF(item);
    const Owned keep(item);
    if (!read_id(item, i, ids[i])) return false;
  }
  return true;
}

// The limited API of 3.10 has no buffers, so a memoryview (of numpy, array, torch's numpy view) hands over a copy.
bool read_buffer(PyObject* view, std::vector<int64_t>& ids) {
  const Owned format(PyObject_GetAttrString(view, "format")), ndim(PyObject_GetAttrString(view, "ndim"));
  if (!format || !ndim) return false;
  const bool int64 = PyUnicode_CompareWithASCIIString(format.get(), "l") == 0 ||
                     PyUnicode_CompareWithASCIIString(format.get(), "q") == 0 ||
                     PyUnicode_CompareWithASCIIString(format.get(), "<q") == 0;
  if (!int64 || PyLong_AsLong(ndim.get()) != 1) {
    PyErr_Format(PyExc_TypeError, "token_ids is a buffer of format '%U' with %S dimensions; int64 with 1 is needed",
                 format.get(), ndim.get());
    return false;
  }
  const Owned bytes(PyObject_CallMethod(view, "tobytes", nullptr));
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (!bytes || PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) return false;
  ids.resize(size / sizeof(int64_t));
  if (size > 0) std::memcpy(ids.data(), data, size);
  for (size_t i = 0; i < ids.size(); i++) {
    if (ids[i] >= 0) continue;
    const Owned number(PyLong_FromLongLong(ids[i]));
    return number && refuse(PyExc_ValueError, static_cast<Py_ssize_t>(i), number.get());
  }
  return true;
}

bool read_ids(PyObject* token_ids, std::vector<int64_t>& ids) {
  if (PyList_Check(token_ids) || PyTuple_Check(token_ids)) return read_sequence(token_ids, ids);
  const Owned view(PyMemoryView_FromObject(token_ids));
  if (view) return read_buffer(view.get(), ids);
  if (PyMemoryView_Check(token_ids)) return false;  // released; Python 3.11 would read it as a sequence all the same
  PyErr_Clear();
  if (!PySequence_Check(token_ids)) {
    const Owned name = type_name(token_ids);
    if (name) PyErr_Format(PyExc_TypeError, "token_ids is a %U; a sequence of integers is needed", name.get());
    return false;
  }
  const Owned list(PySequence_List(token_ids));
  return list && read_sequence(list.get(), ids);
}

bool read_key(PyObject* object, const char* name, uint8_t* key) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (!PyBytes_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s is not bytes; %d bytes are needed", name, gpukey::kKeyBytes);
    return false;
  }
  if (PyBytes_AsStringAndSize(object, &data, &size) != 0) return false;
  if (size != gpukey::kKeyBytes) {
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes; %d are needed", name, size, gpukey::kKeyBytes);
    return false;
  }
  std::memcpy(key, data, size);
  return true;
}

PyObject* text_keys(PyObject*, PyObject* arguments, PyObject* keywords) {
  static const char* const kNames[] = {"token_ids", "parent", "key", "block_size", nullptr};
  PyObject *token_ids, *parent_object, *key_object;
  long long block_size;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOOL:text_keys", const_cast<char**>(kNames), &token_ids,
                                   &parent_object, &key_object, &block_size))
    return nullptr;
  uint8_t parent[gpukey::kKeyBytes], key[gpukey::kKeyBytes];
  if (!read_key(parent_object, "parent", parent) || !read_key(key_object, "key", key)) return nullptr;
  if (block_size < 1 || block_size > gpukey::kMaxBlockSize) {
    PyErr_Format(PyExc_ValueError, "block_size is %lld; 1 to 2**32 - 1 is needed", block_size);
    return nullptr;
  }
  std::vector<int64_t> ids;
  if (!read_ids(token_ids, ids)) return nullptr;

  const int64_t num_blocks = static_cast<int64_t>(ids.size()) / block_size;
  std::vector<uint8_t> keys(num_blocks * gpukey::kKeyBytes);
  if (num_blocks > 0) {
    PyThreadState* state = PyEval_SaveThread();
    gpukey::block_keys(ids.data(), num_blocks, block_size, parent, key, keys.data());
    PyEval_RestoreThread(state);
  }
  Owned result(PyList_New(num_blocks));
  for (int64_t i = 0; result && i < num_blocks; i++) {
    const char* bytes = reinterpret_cast<const char*>(keys.data() + i * gpukey::kKeyBytes);
    PyObject* item = PyBytes_FromStringAndSize(bytes, gpukey::kKeyBytes);
    if (item == nullptr || PyList_SetItem(result.get(), i, item) != 0) return nullptr;
  }
  return result.release();
}

PyObject* encode_ids(PyObject*, PyObject* token_ids) {
  std::vector<int64_t> ids;
  if (!read_ids(token_ids, ids)) return nullptr;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t));
}

// A C++ exception may not pass through Python.
template <class... Arguments>
PyObject* guarded(PyObject* (*function)(PyObject*, Arguments...), PyObject* self, Arguments... arguments) {
  try {
    return function(self, arguments...);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* text_keys_guarded(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return guarded(text_keys, self, arguments, keywords);
}

PyObject* encode_ids_guarded(PyObject* self, PyObject* token_ids) { return guarded(encode_ids, self, token_ids); }

constexpr const char* kTextKeys =
    "text_keys(token_ids, parent, key, block_size) -> list[bytes]\n\n"
    "Keys of all full blocks, 32 bytes each, without overlays (docs/spec.md, \"block key\"). token_ids: integers in\n"
    "0 <= id < 2**63 as a list, a tuple, any sequence or a one-dimensional int64 buffer; parent: 32 bytes; key: 32 "
    "bytes,\n"
    "B3D(\"block\", ...). TypeError and ValueError name the id that is none.";
constexpr const char* kEncodeIds =
    "encode_ids(token_ids) -> bytes\n\nThe ids as a block key hashes them, 8 bytes each. The same checks as text_keys.";

PyMethodDef methods[] = {
    {"text_keys", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(text_keys_guarded)),
     METH_VARARGS | METH_KEYWORDS, kTextKeys},
    {"encode_ids", encode_ids_guarded, METH_O, kEncodeIds},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "_chain",
                      "Token ids and block keys of text, compiled.",
                      0,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__chain() { return PyModuleDef_Init(&module); }
