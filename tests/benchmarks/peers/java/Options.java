import java.util.HashMap;
import java.util.Map;

/** `--name value` pairs. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] args) {
        for (int i = 0; i + 1 < args.length; i += 2) {
            values.put(args[i].substring(2), args[i + 1]);
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    long number(String name) {
        return Long.parseLong(text(name));
    }

    double seconds(String name) {
        return Double.parseDouble(text(name));
    }
}
