import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/** Publishes and consumes with nothing but JDBC: see README.md beside this folder. */
public class Orders {
    static final String TOPIC = "shop/orders", SUBSCRIPTION = "java";
    static final String LEASE_LOST = "PS010";

    record Lease(int partition, long partitionId, long epoch, String state, long position) {}
    record Event(long sequence, String key, String order) {}

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            for (String customer : List.of("ann", "bob", "ann")) {
                place(connection, customer);
            }
            consume(connection, "orders-" + ProcessHandle.current().pid(), UUID.randomUUID());
        }
    }

    /** The event exists if and only if the order does. Its key keeps the events of a customer in order. */
    static void place(Connection connection, String customer) throws SQLException {
        connection.setAutoCommit(false);
        try {
            String id = one(connection, "INSERT INTO orders (customer) VALUES (?) RETURNING id", customer);
            one(connection, "SELECT event_id FROM penstock.publish(?, ?, key => ?, type => ?, content_type => ?)",
                    TOPIC, id.getBytes(StandardCharsets.UTF_8), customer, "order-placed", "application/json");
            connection.commit();
        } finally {
            connection.rollback(); // after a commit: nothing
            connection.setAutoCommit(true);
        }
    }

    static void consume(Connection connection, String consumer, UUID session) throws Exception {
        one(connection, "SELECT penstock.subscribe(?, ARRAY[?])", SUBSCRIPTION, TOPIC);
        one(connection, "SELECT penstock.join(?, ?, ?)", SUBSCRIPTION, consumer, session);
        for (long last = System.nanoTime(); System.nanoTime() - last < 2_000_000_000L; Thread.sleep(100)) {
            for (Lease lease : checkIn(connection, consumer, session)) {
                if (bill(connection, consumer, lease) > 0) {
                    last = System.nanoTime();
                }
                if (lease.state().equals("RELEASING")) { // somebody else is to have it
                    one(connection, "SELECT penstock.release(?, ?, ARRAY[?], ARRAY[?])",
                            SUBSCRIPTION, consumer, lease.partitionId(), lease.epoch());
                }
            }
        }
        one(connection, "SELECT penstock.leave(?, ?, ?)", SUBSCRIPTION, consumer, session);
    }

    /** Says that this consumer is alive, at least every 3 seconds, and returns the leases that it holds now. */
    static List<Lease> checkIn(Connection connection, String consumer, UUID session) throws SQLException {
        String sql = "SELECT partition, partition_id, lease_epoch, state, \"position\" FROM penstock.check_in(?, ?, ?)";
        List<Lease> leases = new ArrayList<>();
        try (PreparedStatement statement = prepared(connection, sql, SUBSCRIPTION, consumer, session);
                ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                leases.add(new Lease(row.getInt(1), row.getLong(2), row.getLong(3), row.getString(4), row.getLong(5)));
            }
        }
        return leases;
    }

    /** Handles what follows the position of one partition, exactly once: bills and position are one transaction. */
    static int bill(Connection connection, String consumer, Lease lease) throws SQLException {
        connection.setAutoCommit(false);
        try {
            List<Event> events = poll(connection, consumer, lease);
            if (!events.isEmpty()) {
                // The position first: who has lost the lease fails here, before anything is written.
                one(connection, "SELECT penstock.commit(?, ?, ARRAY[?], ARRAY[?], ARRAY[?])", SUBSCRIPTION, consumer,
                        lease.partitionId(), lease.epoch(), events.get(events.size() - 1).sequence());
            }
            for (Event event : events) {
                one(connection, "INSERT INTO bills VALUES (?::bigint, 'java') RETURNING 1", event.order());
                System.out.printf("%d:%d %s order %s%n",
                        lease.partition(), event.sequence(), event.key(), event.order());
            }
            connection.commit();
            return events.size();
        } catch (SQLException error) {
            if (LEASE_LOST.equals(error.getSQLState())) {
                return 0; // another consumer has the partition, and bills these orders
            }
            throw error;
        } finally {
            connection.rollback();
            connection.setAutoCommit(true);
        }
    }

    static List<Event> poll(Connection connection, String consumer, Lease lease) throws SQLException {
        String sql = "SELECT sequence, key, payload FROM penstock.poll(?, ?, ARRAY[?], ARRAY[?], ARRAY[?], 100)";
        List<Event> events = new ArrayList<>();
        try (PreparedStatement statement = prepared(connection, sql, SUBSCRIPTION, consumer,
                lease.partitionId(), lease.epoch(), lease.position()); ResultSet row = statement.executeQuery()) {
            while (row.next()) {
                String order = new String(row.getBytes(3), StandardCharsets.UTF_8);
                events.add(new Event(row.getLong(1), row.getString(2), order));
            }
        }
        return events;
    }

    static String one(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = prepared(connection, sql, values);
                ResultSet row = statement.executeQuery()) {
            return row.next() ? row.getString(1) : null;
        }
    }

    static PreparedStatement prepared(Connection connection, String sql, Object... values) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int place = 0; place < values.length; place++) {
            statement.setObject(place + 1, values[place]);
        }
        return statement;
    }
}
